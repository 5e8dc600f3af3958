"""Operations of a causal vocoder on rows, which have the shape [batch, rows, channels].

Rows are time steps. Because the channels are the last axis, the kept inputs of a layer, the samples
of a frame and a panel of a weight are contiguous. On a CPU in float32, weights are packed once into
the blocks of oneDNN. With plain weights, each call would pack them again, which costs more than the
arithmetic for a few frames. Matrix products would also use a library that leaves half of the vector
width of some processors unused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon_services.lm.in_place import into
from antiphon_services.lm.products import onednn_for

# The packed layout of a convolution is chosen for this number of rows. Any number works.
PACKED_FOR_ROWS = 256


class Linear:
    """Applies `weight` [outputs, inputs] and `bias` [outputs] to the last axis.

    It keeps the packed weight and no other copy.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.detach()
        self._onednn = onednn_for(weight)
        self._weight: Tensor = weight.detach().contiguous()
        if self._onednn is not None:
            self._weight = self._onednn._reorder_linear_weight(self._weight)

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Return the product. If `plus` [..., outputs] is given, it is added."""
        if self._onednn is None:
            y = functional.linear(x, self._weight, self._bias)
        else:
            y = self._onednn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y if plus is None else y.add_(plus)


class Convolution:
    """Applies `weight` [outputs, inputs / groups, kernel] along the rows, without padding.

    `reach` is the number of earlier rows on which each output depends.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, dilation: int = 1, groups: int = 1
    ) -> None:
        self._bias = None if bias is None else bias.detach()
        self._dilation = dilation
        self._groups = groups
        self.reach = (weight.shape[-1] - 1) * dilation
        self.inputs = weight.shape[1] * groups
        image = weight.detach()[:, :, None].contiguous(memory_format=torch.channels_last)
        # Depthwise convolutions do not need enough arithmetic for the layout to matter.
        self._onednn = onednn_for(weight) if groups == 1 else None
        if self._onednn is not None:
            shape = [1, self.inputs, 1, PACKED_FOR_ROWS + self.reach]
            image = self._onednn._reorder_convolution_weight(image, *self._geometry, shape)
        self._weight: Tensor = image

    @property
    def _geometry(self) -> tuple[list[int], list[int], list[int], int]:
        """Return padding, stride, dilation and groups for a 2D convolution."""
        return [0, 0], [1, 1], [1, self._dilation], self._groups

    def __call__(self, x: Tensor) -> Tensor:
        """Map [batch, rows, inputs] to a contiguous tensor [batch, rows - reach, outputs]."""
        padding, stride, dilation, groups = self._geometry
        image = x.transpose(1, 2).unsqueeze(2)
        if self._onednn is None:
            y = functional.conv2d(image, self._weight, self._bias, dilation=dilation, groups=groups)
        else:
            geometry = (padding, stride, dilation, groups)
            y = self._onednn._convolution_pointwise(
                image, self._weight, self._bias, *geometry, "none", [], ""
            )
        return y.squeeze(2).transpose(1, 2).contiguous()


class UnfoldedConvolution:
    """A `Convolution` without groups that is computed as one matrix product over the rows of all
    sessions.

    This is faster if each session has only a few rows, which would not fill the registers of a
    convolution's kernel. The unfolded rows are `kernel` times as wide, so with many rows they would
    not fit into the caches.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, dilation: int = 1) -> None:
        self._product = Linear(weight.detach().transpose(1, 2).flatten(1), bias)
        self._dilation = dilation
        _, self.inputs, self._kernel = weight.shape
        self.reach = (self._kernel - 1) * dilation

    def __call__(self, x: Tensor) -> Tensor:
        """Like `Convolution.__call__`, but `x` must be contiguous."""
        batch, length, channels = x.shape
        shape = (batch, length - self.reach, self._kernel, channels)
        strides = (length * channels, channels, self._dilation * channels, 1)
        return self._product(x.as_strided(shape, strides).reshape(*shape[:2], -1))


class Snake:
    """A SnakeBeta activation whose exponentials are computed in advance from `alpha`, `beta` and
    `no_div_by_zero`.
    """

    def __init__(self, module: Any) -> None:
        with torch.no_grad():
            self._frequency: Tensor = module.alpha.exp()
            self._magnitude: Tensor = 1.0 / (module.beta.exp() + module.no_div_by_zero)

    def __call__(self, x: Tensor, out: Tensor) -> Tensor:
        """Write x + magnitude * sin(frequency * x) ** 2 to `out`, which may be the same tensor as
        `x`.
        """
        wave = torch.mul(x, self._frequency).sin_()
        return into(out, torch.addcmul, x, wave.mul_(wave), self._magnitude)


def concatenated(*layers: nn.Linear) -> Linear:
    """Return one `Linear` that computes the concatenated outputs of the layers."""
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    if len(biases) not in (0, len(layers)):
        raise ValueError("either all layers have a bias or none")
    bias = torch.cat(biases) if biases else None
    return Linear(torch.cat([layer.weight.detach() for layer in layers]), bias)


def scaled(layer: nn.Linear, scale: Tensor) -> Linear:
    """Return a `Linear` that computes the outputs of `layer` multiplied by `scale`."""
    bias = None if layer.bias is None else layer.bias * scale
    return Linear(layer.weight * scale[:, None], bias)
