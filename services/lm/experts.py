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

# A matrix product of fewer rows takes another path through the CPU's library, with
# other digits. From this number on each row's digits are the same in any company, so
# every product of a batch-invariant decoder has so many rows at least.
LEAST_ROWS = 4


class Dense:
    """A gated MLP."""

    asks_device = False

    def __init__(self, module: Any) -> None:
        self._in = fuse(module.gate_proj, module.up_proj)
        self._out = fuse(module.down_proj)
        self._activate: Callable[[Tensor], Tensor] = module.act_fn.forward

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, hidden] to the same."""
        gate, up = linear(rows, *self._in).chunk(2, dim=-1)
        return linear(self._activate(gate) * up, *self._out)


class Sparse:
    """Experts, with a shared one that sees every row if the module has it.

    `by_loop` keeps digits the same in any company on a CPU, for `LEAST_ROWS` or more.
    """

    def __init__(self, module: Any, *, by_loop: bool = False) -> None:
        router, experts = module.gate, module.experts
        self._taken: int = router.top_k
        self._normalised: bool = router.norm_topk_prob
        self._in: Tensor = experts.gate_up_proj
        self._out: Tensor = experts.down_proj
        self._activate: Callable[[Tensor], Tensor] = experts.act_fn.forward
        self._count = len(self._in)
        self._gates: Tensor = router.weight
        self._shared = Dense(module.shared_expert) if hasattr(module, "shared_expert") else None
        if self._shared is not None:
            # One product for the router and the shared expert's gate.
            self._gates = torch.cat((router.weight, module.shared_expert_gate.weight))
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
        gates = linear(rows, self._gates)
        shares, taken = gates[:, : self._count].softmax(-1, dtype=torch.float32).topk(self._taken)
        if self._normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        mix = self._mix_by_loop if self._by_loop else self._mix
        mixed = mix(rows, taken, shares.to(rows.dtype))
        if self._shared is None:
            return mixed
        return mixed + gates[:, -1:].sigmoid() * self._shared(rows)

    def _mix(self, rows: Tensor, taken: Tensor, shares: Tensor) -> Tensor:
        """The shares [n, k] of experts `taken` [n, k], summed: [n, hidden]."""
        order = taken.flatten().argsort()
        counts = torch.zeros(self._count, dtype=torch.int32, device=rows.device)
        counts.index_add_(0, taken.flatten(), torch.ones_like(order, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        owners = order // self._taken
        gate, up = grouped_mm(rows[owners], self._in.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        made = grouped_mm(self._activate(gate) * up, self._out.transpose(1, 2), offs=ends)
        weighted = made * shares.flatten()[order, None]
        return torch.zeros_like(rows).index_add_(0, owners, weighted)

    def _mix_by_loop(self, rows: Tensor, taken: Tensor, shares: Tensor) -> Tensor:
        """As `_mix`."""
        order = taken.flatten().argsort(stable=True)
        owners = order // self._taken
        given = rows[owners]
        made = torch.empty_like(given)
        start = 0
        for index, count in enumerate(taken.flatten().bincount().tolist()):
            if count == 0:
                continue
            # Neighbours, whose outputs are dropped, make up the least number of rows.
            first = min(start, max(len(given) - LEAST_ROWS, 0))
            stop = max(start + count, first + LEAST_ROWS)
            gate, up = linear(given[first:stop], self._in[index]).chunk(2, dim=-1)
            outputs = linear(self._activate(gate) * up, self._out[index])
            made[start : start + count] = outputs[start - first : start - first + count]
            start += count
        weighted = made * shares.flatten()[order, None]
        return torch.zeros_like(rows).index_add_(0, owners, weighted)


def fuse(*linears: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one product that gives the outputs of all, one after the other."""
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    biases = [each.bias for each in linears if each.bias is not None]
    return torch.cat([each.weight for each in linears]), torch.cat(biases) if biases else None
