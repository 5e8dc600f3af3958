"""Multiplies rows by the weights of a linear layer, which are packed only once.

With an ordinary weight, every call packs the weight again, which costs more than the arithmetic if
there are only a few rows. On a CPU in float32, large weights are therefore packed for oneDNN in
advance. For small weights (measured up to 128 Ki numbers), the CPU's own library takes less time
than oneDNN needs to get started, so it is used instead. This choice depends only on the weight.
With either library, the result for a row is bit-identical in every batch of at least
`antiphon_services.lm.experts.LEAST_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

PACKED_FROM = 128 << 10

# The layout is optimized for this number of rows, but works for any number. A layout for a single
# row might round differently.
PACKED_FOR_ROWS = 16


class Product:
    """Multiplies rows by the transposed `weight` [outputs, inputs] and adds `bias` [outputs]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        # In bfloat16, the product must be rounded before the addition, as everywhere else.
        self._adds_alone = bias is not None or weight.dtype != torch.float32
        self._onednn = onednn_for(weight) if weight.numel() >= PACKED_FROM else None
        if self._onednn is None:
            self._weight: Tensor = weight.t()
        else:
            packed = weight.detach().contiguous()
            self._weight = self._onednn._reorder_linear_weight(packed, PACKED_FOR_ROWS)

    @property
    def packed(self) -> bool:
        """Whether the weight is packed."""
        return self._onednn is not None

    @classmethod
    def of(cls, *linears: Any, scale: Tensor | None = None) -> Product:
        """Join linear layers into one product. It returns their concatenated outputs for inputs
        that are multiplied by `scale`.
        """
        bias = None
        if any(each.bias is not None for each in linears):
            bias = torch.cat([each.bias for each in linears if each.bias is not None])
        if len(linears) == 1:
            weight = linears[0].weight
        else:
            weight = torch.cat([each.weight for each in linears])
            _share(linears, weight)
        return cls(weight if scale is None else weight * scale, bias)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the product [n, outputs]."""
        if self._onednn is not None:
            product: Tensor = self._onednn._linear_pointwise(
                rows, self._weight, self._bias, "none", [], ""
            )
            return product
        if self._bias is not None:
            return torch.addmm(self._bias, rows, self._weight)
        return torch.mm(rows, self._weight)

    def plus(self, rows: Tensor, other: Tensor) -> Tensor:
        """Return the product plus `other` [n, outputs]."""
        if self._onednn is not None:
            total: Tensor = self._onednn._linear_pointwise(
                rows, other, self._weight, self._bias, "add"
            )
            return total
        if self._adds_alone:
            return other + self(rows)
        return torch.addmm(other, rows, self._weight)

    def put(self, rows: Tensor, out: Tensor) -> None:
        """Write the product to `out` [n, outputs]."""
        if self._onednn is not None:
            out.copy_(self(rows))
        elif self._bias is not None:
            torch.addmm(self._bias, rows, self._weight, out=out)
        else:
            torch.mm(rows, self._weight, out=out)

    def add_to(self, out: Tensor, rows: Tensor) -> None:
        """Add the product to `out` [n, outputs]."""
        if self._adds_alone or self._onednn is not None:
            out.add_(self(rows))
        else:
            out.addmm_(rows, self._weight)


def _share(linears: Sequence[Any], joint: Tensor) -> None:
    """Replace the weights of the layers with views of `joint`, so that no second copy of them
    exists while a model is being loaded.

    Weights that require gradients are left unchanged.
    """
    parts = torch.split(joint, [len(each.weight) for each in linears])
    for linear, part in zip(linears, parts, strict=True):
        if not linear.weight.requires_grad:
            linear.weight = torch.nn.Parameter(part, requires_grad=False)


def onednn_for(weight: Tensor) -> Any:
    """Return TorchInductor's operators for packed weights, or None if they are not available."""
    usable = (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    )
    return torch.ops.mkldnn if usable else None
