"""The MLPs of a decoder layer: a dense one, and experts of which each row takes a few.

Hugging Face's experts serve any device without asking it which ones are taken. On a
CPU asking is free, and a plain loop over those that are reads each weight once and
does not depend on the other rows: see `LEAST_ROWS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

# A matrix product of fewer rows takes another path through the CPU's library, with
# other digits. From this number on each row's digits are the same in any company, so
# every product of the talker has so many rows at least.
LEAST_ROWS = 4


class Dense:
    """`Qwen3OmniMoeMLP`."""

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
    """`Qwen3OmniMoeTalkerTextSparseMoeBlock`."""

    def __init__(self, module: Any) -> None:
        router = module.gate
        self._taken: int = router.top_k
        self._normalised: bool = router.norm_topk_prob
        self._experts = module.experts
        self._shared = Dense(module.shared_expert)
        # One product for the router and the shared expert's gate.
        self._gates = torch.cat((router.weight, module.shared_expert_gate.weight))

    @property
    def asks_device(self) -> bool:
        """Whether a call waits for a value that the device knows, which no graph can do.

        The loop does. On a GPU, torch's grouped product does not where it has a kernel:
        `_grouped_mm_cuda` has one for bfloat16 on these; else it loops over the experts.
        """
        weight = self._experts.gate_up_proj
        if weight.device.type == "cpu" or weight.dtype != torch.bfloat16:
            return True
        if self._experts.config._experts_implementation != "grouped_mm":
            return True
        return torch.cuda.get_device_capability(weight.device)[0] not in (9, 10)

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, hidden] to the same; at least `LEAST_ROWS`."""
        gates = linear(rows, self._gates)
        shares, taken = gates[:, :-1].softmax(-1, dtype=torch.float32).topk(self._taken)
        if self._normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        mix = self._mix_by_loop if rows.device.type == "cpu" else self._experts
        mixed: Tensor = mix(rows, taken, shares.to(rows.dtype))
        return mixed + gates[:, -1:].sigmoid() * self._shared(rows)

    def _mix_by_loop(self, rows: Tensor, taken: Tensor, shares: Tensor) -> Tensor:
        """The shares [n, k] of experts `taken` [n, k], summed: [n, hidden]."""
        experts = self._experts
        order = taken.flatten().argsort(stable=True)
        given = rows[order // self._taken]
        outputs = torch.empty_like(given)
        start = 0
        for index, count in enumerate(taken.flatten().bincount().tolist()):
            if count == 0:
                continue
            # Neighbours, whose outputs are dropped, make up the least number of rows.
            first = min(start, max(len(given) - LEAST_ROWS, 0))
            stop = max(start + count, first + LEAST_ROWS)
            gate, up = linear(given[first:stop], experts.gate_up_proj[index]).chunk(2, dim=-1)
            made = linear(experts.act_fn(gate) * up, experts.down_proj[index])
            outputs[start : start + count] = made[start - first : start - first + count]
            start += count
        weighted = outputs * shares.flatten()[order, None]
        return torch.zeros_like(rows).index_add_(0, order // self._taken, weighted)


def fuse(*linears: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one product that gives the outputs of all, one after the other."""
    biases = [each.bias for each in linears if each.bias is not None]
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    return torch.cat([each.weight for each in linears]), torch.cat(biases) if biases else None
