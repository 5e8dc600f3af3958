"""The MLP of a decoder layer, which is either dense or a mixture of experts.

The experts are computed as one grouped product over rows that are sorted by expert. This avoids a
loop over the experts, and the routing doesn't have to be read back from the device. If results must
not depend on the batch, the experts are computed one at a time on a CPU instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm, linear

from antiphon.errors import FailedPrecondition
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.products import Product

# For products with fewer rows than this, the CPU's library uses a different algorithm that rounds
# differently. If every product of a batch-invariant decoder has at least this many rows, the result
# for a row is bit-identical in every batch.
LEAST_ROWS = 4


SILU_CLASSES = frozenset({"SiLU", "SiLUActivation"})
"""The names of these classes in torch and in transformers. Names are compared because importing the
class from transformers is expensive, as described in `lm.modules`.
"""


class Mlp(Protocol):
    """The MLP of a layer.

    `kinds` (int64 [n]) contains the index of each row's router if there are several of them.
    Otherwise it has no effect. If it is None, the first router is used for all rows.
    """

    @property
    def asks_device(self) -> bool:
        """Whether a call waits for a value from the device. If so, it can't be captured in a CUDA
        graph.
        """

    def __call__(self, rows: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Map rows [n, hidden] to outputs [n, hidden]."""

    def plus(self, rows: Tensor, other: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Return the output plus `other` [n, hidden]."""

    def fused(self, rows: Tensor, kernels: Kernels) -> Tensor:
        """Map rows [n, hidden] to outputs [n, hidden] with fused kernels."""


class Dense:
    """A gated MLP."""

    asks_device = False

    def __init__(self, module: Any) -> None:
        self._in = Product.of(module.gate_proj, module.up_proj)
        self._out = Product.of(module.down_proj)
        self._activate: Callable[[Tensor], Tensor] = module.act_fn.forward

    def __call__(self, rows: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Map rows [n, hidden] to outputs [n, hidden]."""
        return self._out(self._inner(rows))

    def plus(self, rows: Tensor, other: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Return the output plus `other` [n, hidden]."""
        return self._out.plus(self._inner(rows), other)

    def fused(self, rows: Tensor, kernels: Kernels) -> Tensor:
        """Map rows [n, hidden] to outputs [n, hidden] with fused kernels."""
        return self._out(kernels.gate(self._in(rows)))

    def _inner(self, rows: Tensor) -> Tensor:
        gate, up = self._in(rows).chunk(2, dim=-1)
        return self._activate(gate).mul_(up)


class ExpertProducts:
    """The products of all experts of a layer. `experts` is a `lm.modules.Experts`.

    `by_loop` has the same meaning as in `Sparse`.
    """

    def __init__(self, experts: Any, *, by_loop: bool) -> None:
        self._in: Tensor = experts.gate_up_proj
        self._out: Tensor = experts.down_proj
        self._activate: Callable[[Tensor], Tensor] = experts.act_fn.forward
        self._count = len(self._in)
        # The IDs of the experts.
        self._numbers = torch.arange(self._count, device=self._in.device)
        self._by_loop = by_loop and self._in.device.type == "cpu"

    @property
    def asks_device(self) -> bool:
        """Whether a call waits for a value from the device. If so, it can't be captured in a CUDA
        graph.

        On a GPU, torch's grouped product doesn't wait if there is a kernel for it.
        `_grouped_mm_cuda` supports bfloat16 on these compute capabilities. In all other cases,
        torch loops over the experts, as it does on a CPU.
        """
        weight = self._in
        if weight.device.type == "cpu" or weight.dtype != torch.bfloat16:
            return True
        return torch.cuda.get_device_capability(weight.device)[0] not in (9, 10)

    def _sorted_outputs(self, rows: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [n * k, hidden] of the experts `taken` [n, k] for each row.

        The outputs are sorted by expert. The second result (int64 [n * k]) contains the index of
        each of them in `taken`.
        """
        by_expert, order = taken.flatten().sort(stable=True)
        given = rows.index_select(0, order // taken.shape[1])
        made = self._loop(given, by_expert) if self._by_loop else self._grouped(given, by_expert)
        return made, order

    def _grouped(self, given: Tensor, by_expert: Tensor) -> Tensor:
        """Return the outputs of the experts for rows that are sorted by expert."""
        ends = torch.searchsorted(by_expert, self._numbers, right=True, out_int32=True)
        gate, up = grouped_mm(given, self._in.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        return grouped_mm(self._activate(gate).mul_(up), self._out.transpose(1, 2), offs=ends)

    def _loop(self, given: Tensor, by_expert: Tensor) -> Tensor:
        """Like `_grouped`, but compute one expert at a time."""
        made = torch.empty_like(given)
        start = 0
        for index, count in enumerate(by_expert.bincount().tolist()):
            if count == 0:
                continue
            # If an expert has fewer rows than the minimum, neighbouring rows serve as padding, and
            # their outputs are dropped.
            first = min(start, max(len(given) - LEAST_ROWS, 0))
            stop = max(start + count, first + LEAST_ROWS)
            gate, up = linear(given[first:stop], self._in[index]).chunk(2, dim=-1)
            outputs = linear(self._activate(gate).mul_(up), self._out[index])
            made[start : start + count] = outputs[start - first : start - first + count]
            start += count
        return made


def in_rows(made: Tensor, order: Tensor, taken: Tensor) -> Tensor:
    """Return the outputs [n, k, hidden] of the experts `taken` [n, k], given the result of
    `ExpertProducts` for them.

    The k outputs of each row are adjacent, which gives their sums a fixed order, even on a GPU.
    """
    by_row = torch.empty_like(made).index_copy_(0, order, made)
    return by_row.view(*taken.shape, -1)


class Sparse(ExpertProducts):
    """A mixture of experts. If the module has a shared expert, it is applied to every row.

    If `by_loop` is true, results on a CPU don't depend on the batch, provided that there are at
    least `LEAST_ROWS` rows. If `exact` is true, sums are computed in the same order as in Hugging
    Face's implementation.
    """

    def __init__(self, module: Any, *, by_loop: bool = False, exact: bool = False) -> None:
        super().__init__(module.experts, by_loop=by_loop)
        router = module.gate
        self._taken: int = router.top_k
        self._normalised: bool = router.norm_topk_prob
        gates: Tensor = router.weight
        self._shared = Dense(module.shared_expert) if hasattr(module, "shared_expert") else None
        if self._shared is not None:
            # The router and the shared expert's gate are computed as one product.
            gates = torch.cat((router.weight, module.shared_expert_gate.weight))
        self._gates = Product(gates)
        self._exact = exact and self._in.device.type == "cpu"

    def __call__(self, rows: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Map rows [n, hidden] to outputs [n, hidden]."""
        gates = self._gates(rows)
        shares, taken = self._choose(gates[:, : self._count])
        mixed = self._mix(rows, taken, shares.to(rows.dtype))
        if self._shared is None:
            return mixed
        return mixed + gates[:, -1:].sigmoid() * self._shared(rows)

    def plus(self, rows: Tensor, other: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Return the output plus `other` [n, hidden]."""
        return other + self(rows)

    def fused(self, rows: Tensor, kernels: Kernels) -> Tensor:
        """Map rows [n, hidden] to outputs [n, hidden] with fused kernels, and with a grouped
        product on any device.
        """
        gates = self._gates(rows)
        logits = gates[:, : self._count]
        if self._normalised:
            shares, taken = logits.topk(self._taken)
        else:
            shares, taken = logits.softmax(-1, dtype=torch.float32).topk(self._taken)
        by_expert, order = taken.flatten().sort(stable=True)
        given = kernels.take_rows(rows, order, self._taken)
        ends = torch.searchsorted(by_expert, self._numbers, right=True, out_int32=True)
        inner = kernels.gate(grouped_mm(given, self._in.transpose(1, 2), offs=ends))
        made = grouped_mm(inner, self._out.transpose(1, 2), offs=ends)
        by_row = torch.empty_like(made).index_copy_(0, order, made)
        shared, gate = None, None
        if self._shared is not None:
            shared, gate = self._shared.fused(rows, kernels), gates[:, -1:]
        by_row = by_row.view(len(rows), self._taken, -1)
        mixed: Tensor = kernels.mix_experts(by_row, shares, shared, gate, self._normalised)
        return mixed

    def _choose(self, gates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares (float32 [n, k]) and the indices [n, k] of the chosen experts."""
        if self._exact or not self._normalised:
            shares, taken = gates.softmax(-1, dtype=torch.float32).topk(self._taken)
            if self._normalised:
                shares = shares / shares.sum(-1, keepdim=True)
            return shares, taken
        # Normalized shares are equal to a softmax over the selected experts.
        highest, taken = gates.topk(self._taken)
        return highest.softmax(-1, dtype=torch.float32), taken

    def _mix(self, rows: Tensor, taken: Tensor, shares: Tensor) -> Tensor:
        """Return the weighted sum [n, hidden] of the outputs of the chosen experts `taken` [n, k].
        The weights are `shares` [n, k].
        """
        made, order = self._sorted_outputs(rows, taken)
        if self._exact:
            weighted = made * shares.flatten()[order, None]
            return torch.zeros_like(rows).index_add_(0, order // self._taken, weighted)
        return in_rows(made, order, taken).mul_(shares[:, :, None]).sum(1)


def require_silu(activate: Any) -> None:
    """Raise `FailedPrecondition` if there is no fused kernel for the activation function."""
    if type(activate).__name__ not in SILU_CLASSES:
        raise FailedPrecondition(
            f"torch.fused: the MLP's hidden_act is a {type(activate).__name__}, but the kernels "
            "only support silu; set torch.fused to false",
            field="torch.fused",
        )
