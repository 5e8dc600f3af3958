"""The MLPs of a decoder layer: a dense one, and experts of which each row takes a few.

Experts are one grouped product over rows sorted by expert, which needs neither a loop nor
a look at the device's choices. Where each row's digits must be the same in any company, a
CPU runs them one after the other instead: see `LEAST_ROWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm, linear

from antiphon.errors import FailedPrecondition
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.products import Product

# A matrix product of fewer rows takes another path through the CPU's library, with
# other digits. From this number on each row's digits are the same in any company, so
# every product of a batch-invariant decoder has so many rows at least.
LEAST_ROWS = 4


SILU_CLASSES = frozenset({"SiLU", "SiLUActivation"})
"""torch's and transformers', by name: to import the latter's costs what `lm.modules` says."""


class Dense:
    """A gated MLP."""

    asks_device = False

    def __init__(self, module: Any) -> None:
        self._in = Product.of(module.gate_proj, module.up_proj)
        self._out = Product.of(module.down_proj)
        self._activate: Callable[[Tensor], Tensor] = module.act_fn.forward

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, hidden] to the same."""
        return self._out(self._inner(rows))

    def plus(self, rows: Tensor, other: Tensor) -> Tensor:
        """The sum with `other` [n, hidden]."""
        return self._out.plus(self._inner(rows), other)

    def fused(self, rows: Tensor, kernels: Kernels) -> Tensor:
        """The same by fused kernels."""
        return self._out(kernels.gate(self._in(rows)))

    def _inner(self, rows: Tensor) -> Tensor:
        gate, up = self._in(rows).chunk(2, dim=-1)
        return self._activate(gate).mul_(up)


class Sparse:
    """Experts, with a shared one that sees every row if the module has it.

    `by_loop` keeps digits the same in any company on a CPU, for `LEAST_ROWS` or more. One that
    is `exact` sums as Hugging Face does there.
    """

    def __init__(self, module: Any, *, by_loop: bool = False, exact: bool = False) -> None:
        router, experts = module.gate, module.experts
        self._taken: int = router.top_k
        self._normalised: bool = router.norm_topk_prob
        self._in: Tensor = experts.gate_up_proj
        self._out: Tensor = experts.down_proj
        self._activate: Callable[[Tensor], Tensor] = experts.act_fn.forward
        self._count = len(self._in)
        gates: Tensor = router.weight
        self._shared = Dense(module.shared_expert) if hasattr(module, "shared_expert") else None
        if self._shared is not None:
            # One product for the router and the shared expert's gate.
            gates = torch.cat((router.weight, module.shared_expert_gate.weight))
        self._gates = Product(gates)
        # Of the experts.
        self._numbers = torch.arange(self._count, device=self._in.device)
        self._exact = exact and self._in.device.type == "cpu"
        self._by_loop = by_loop and self._in.device.type == "cpu"

    @property
    def asks_device(self) -> bool:
        """Whether a call waits for a value that the device knows, which no graph can do.

        On a GPU torch's grouped product does not where it has a kernel: `_grouped_mm_cuda`
        has one for bfloat16 on these; else it loops over the experts, as on a CPU.
        """
        weight = self._in
        if weight.device.type == "cpu" or weight.dtype != torch.bfloat16:
            return True
        return torch.cuda.get_device_capability(weight.device)[0] not in (9, 10)

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, hidden] to the same."""
        gates = self._gates(rows)
        shares, taken = self._choose(gates[:, : self._count])
        mixed = self._mix(rows, taken, shares.to(rows.dtype))
        if self._shared is None:
            return mixed
        return mixed + gates[:, -1:].sigmoid() * self._shared(rows)

    def plus(self, rows: Tensor, other: Tensor) -> Tensor:
        """The sum with `other` [n, hidden]."""
        return other + self(rows)

    def fused(self, rows: Tensor, kernels: Kernels) -> Tensor:
        """The same by fused kernels, with a grouped product on any device."""
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
        """Shares float32 [n, k] of experts [n, k]."""
        if self._exact or not self._normalised:
            shares, taken = gates.softmax(-1, dtype=torch.float32).topk(self._taken)
            if self._normalised:
                shares = shares / shares.sum(-1, keepdim=True)
            return shares, taken
        # Those of all experts, over their sum, are those of the taken ones.
        highest, taken = gates.topk(self._taken)
        return highest.softmax(-1, dtype=torch.float32), taken

    def _mix(self, rows: Tensor, taken: Tensor, shares: Tensor) -> Tensor:
        """The shares [n, k] of experts `taken` [n, k], summed: [n, hidden].

        Rows are sorted by expert, and what becomes of them goes back to where the k of each row
        stand side by side, so sums have one order on a GPU, too.
        """
        by_expert, order = taken.flatten().sort(stable=True)
        owners = order // self._taken
        given = rows.index_select(0, owners)
        made = self._loop(given, by_expert) if self._by_loop else self._grouped(given, by_expert)
        if self._exact:
            weighted = made * shares.flatten()[order, None]
            return torch.zeros_like(rows).index_add_(0, owners, weighted)
        by_row = torch.empty_like(made).index_copy_(0, order, made)
        return by_row.view(len(rows), self._taken, -1).mul_(shares[:, :, None]).sum(1)

    def _grouped(self, given: Tensor, by_expert: Tensor) -> Tensor:
        """What experts make of rows that are sorted by them."""
        ends = torch.searchsorted(by_expert, self._numbers, right=True, out_int32=True)
        gate, up = grouped_mm(given, self._in.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        return grouped_mm(self._activate(gate).mul_(up), self._out.transpose(1, 2), offs=ends)

    def _loop(self, given: Tensor, by_expert: Tensor) -> Tensor:
        """As `_grouped`."""
        made = torch.empty_like(given)
        start = 0
        for index, count in enumerate(by_expert.bincount().tolist()):
            if count == 0:
                continue
            # Neighbours, whose outputs are dropped, make up the least number of rows.
            first = min(start, max(len(given) - LEAST_ROWS, 0))
            stop = max(start + count, first + LEAST_ROWS)
            gate, up = linear(given[first:stop], self._in[index]).chunk(2, dim=-1)
            outputs = linear(self._activate(gate).mul_(up), self._out[index])
            made[start : start + count] = outputs[start - first : start - first + count]
            start += count
        return made


def require_silu(activate: Any) -> None:
    """Raise `FailedPrecondition` for an MLP that fused kernels do not compute."""
    if type(activate).__name__ not in SILU_CLASSES:
        raise FailedPrecondition(
            f"fused: the MLP's hidden_act is a {type(activate).__name__}, and kernels compute "
            "silu alone; set fused to false",
            field="fused",
        )
