"""A mixture of experts whose router first chooses groups of experts.

This is the router of DeepSeek-V3 and Ling 2.0. The scores are sigmoids. A bias is added for the
choice, but not for the weights: a group's score is the sum of its two highest biased scores, and
experts are only chosen from the groups with the highest scores. The weights of the chosen experts
are normalized and then multiplied by a factor. There can be several routers, which share the
experts.

The routers compute in float32, and the weighted outputs are also added up in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from antiphon_services.lm.experts import Dense, ExpertProducts, in_rows
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.modules import Experts, GatedMLP

BEST_OF_GROUP = 2
LEAST_SUM = 1e-20


class BiasedRouter(nn.Module):
    """The weights of a router, and the bias of each expert."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.expert_bias = nn.Parameter(torch.empty(config.num_experts))


class GroupLimitedMLP(nn.Module):
    """Routers called `gates`, which share the experts, and a shared expert that every row uses.

    The fields of `config` have the same names as in Ling 2.0.
    """

    def __init__(self, config: Any, gates: tuple[str, ...]) -> None:
        super().__init__()
        self.top_k: int = config.num_experts_per_tok
        self.groups: int = config.n_group
        self.chosen_groups: int = config.topk_group
        self.factor: float = config.routed_scaling_factor
        self.gates = gates
        for gate in gates:
            setattr(self, gate, BiasedRouter(config))
        self.experts = Experts(config)
        inner = config.num_shared_experts * config.moe_intermediate_size
        self.shared_experts = GatedMLP(config, inner)


class GroupLimited(ExpertProducts):
    """Computes a `GroupLimitedMLP`. Implements `lm.experts.Mlp`."""

    def __init__(self, module: Any, *, by_loop: bool = False) -> None:
        super().__init__(module.experts, by_loop=by_loop)
        self._taken: int = module.top_k
        self._groups: int = module.groups
        self._chosen_groups: int = module.chosen_groups
        self._factor: float = module.factor
        routers = [getattr(module, gate) for gate in module.gates]
        # A float32 copy of them would have to be planned for.
        self._gates: list[Tensor] = [each.weight for each in routers]
        self._biases = torch.stack([each.expert_bias.float() for each in routers])
        self._shared = Dense(module.shared_experts)

    def __call__(self, rows: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Map rows [n, hidden] to outputs [n, hidden]."""
        shares, taken = self.choose(rows, kinds)
        made, order = self._sorted_outputs(rows, taken)
        mixed = in_rows(made, order, taken).float().mul_(shares[:, :, None]).sum(1)
        return mixed.to(rows.dtype) + self._shared(rows)

    def plus(self, rows: Tensor, other: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Return the output plus `other` [n, hidden]."""
        return other + self(rows, kinds)

    def fused(self, rows: Tensor, kernels: Kernels) -> Tensor:
        """Map rows [n, hidden] to outputs [n, hidden]. There are no kernels for this router."""
        return self(rows)

    def choose(self, rows: Tensor, kinds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the weights (float32 [n, k]) and the indices [n, k] of the chosen experts."""
        logits, bias = self._scores(rows.float(), kinds)
        scores = logits.sigmoid()
        grouped = (scores + bias).view(len(rows), self._groups, -1)
        of_groups = grouped.topk(BEST_OF_GROUP, dim=-1)[0].sum(-1)
        chosen = of_groups.topk(self._chosen_groups, dim=-1)[1]
        others = torch.ones_like(of_groups, dtype=torch.bool).scatter_(1, chosen, value=False)
        open_to = grouped.masked_fill(others[:, :, None], float("-inf")).flatten(1)
        taken = open_to.topk(self._taken, dim=-1)[1]
        shares = scores.gather(1, taken)
        if self._taken > 1:
            shares = shares / (shares.sum(-1, keepdim=True) + LEAST_SUM)
        return shares * self._factor, taken

    def _scores(self, rows: Tensor, kinds: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the logits [n, experts] of each row's router, and the biases that belong to
        them.
        """
        if kinds is None:
            return linear(rows, self._gates[0].float()), self._biases[0]
        of_all = torch.stack([linear(rows, gate.float()) for gate in self._gates], dim=1)
        index = kinds[:, None, None].expand(-1, 1, self._count)
        return of_all.gather(1, index).squeeze(1), self._biases[kinds]
