"""One decoder layer, from the weights of Hugging Face's modules.

The talker and its code predictor have the same layer: pre-norm attention with
normed queries and keys, rotary positions and grouped heads, then a pre-norm MLP. A
frame runs it about a hundred times on few rows, where the number of operations is
what it costs; so queries, keys and values are one product, normed and rotated as
one, and so are gate and up of a dense MLP. The mathematics and its rounding are
`Qwen3OmniMoeThinkerTextAttention`'s, `Qwen3OmniMoeTalkerCodePredictorAttention`'s
and `Qwen3OmniMoeRMSNorm`'s.

Rows of many sessions go through together. What a row sees of others is up to
`attend`, which is handed in; all else here is by row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from services.talker.experts import Dense, Sparse, fuse

# Takes queries [n, heads, head_dim] and, one after the other, keys and values
# [n, 2 * key heads, head_dim] of new rows, and returns the values that each row sees,
# mixed: [n, heads, head_dim].
Attend = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and signed sines [n, 1, head_dim] of the positions of n rows.

    `axes` int64 [head_dim] says, in a table of plain positions, which of a row's three
    positions (time, height, width) turns each dimension; None where there is but one.
    """

    cosines: Tensor
    sines: Tensor
    axes: Tensor | None = None

    @classmethod
    def of(cls, rotary: Any, positions: int, like: Tensor) -> Rotation:
        """Of plain positions 0, 1, ... on all axes; `rotary` is the model's module."""
        index = torch.arange(positions, device=like.device)[None]
        axes = None
        if hasattr(rotary, "mrope_section"):
            index = index.expand(3, 1, -1)
            axes = _axes(rotary, like.device)
        cosines, sines = (each[0, :, None] for each in rotary(like, index))
        low, high = sines.chunk(2, dim=-1)
        return cls(cosines, torch.cat((-low, high), dim=-1), axes)

    def at(self, positions: Tensor) -> Rotation:
        """Of the rows' positions, int64 [n], or [n, 3] where their axes differ."""
        if positions.ndim == 1:
            return Rotation(self.cosines[positions], self.sines[positions])
        index = positions[:, None, self.axes]
        return Rotation(self.cosines.gather(0, index), self.sines.gather(0, index))

    def apply(self, heads: Tensor, out: Tensor | None = None) -> Tensor:
        """`apply_rotary_pos_emb` of [n, heads, head_dim]."""
        turned = heads.roll(heads.shape[-1] // 2, -1)
        return torch.add(heads * self.cosines, turned * self.sines, out=out)


def _axes(rotary: Any, device: torch.device) -> Tensor:
    """Which axis turns each dimension: the one along which a step of 1 does something."""
    like = torch.empty(0, device=device)
    steps = torch.eye(3, device=device)[:, None]
    _, sines = rotary(like, steps)
    axes: Tensor = sines[0].abs().argmax(0)
    return axes


class Norm:
    """`Qwen3OmniMoeRMSNorm`: normed in float32, cast back, then weighted."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = torch.tensor(epsilon, device=weight.device)
        self._share = 1.0 / weight.shape[-1]

    def __call__(self, rows: Tensor) -> Tensor:
        """The same shape and dtype; over the last dimension."""
        exact = rows.float()
        # One reduction: on few rows it costs less than half of square and mean.
        length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon, length, length, value=self._share).rsqrt_()
        return self._weight * (exact * scale).to(rows.dtype)


class Layer:
    """A decoder layer. `module` is HF's; its attention and dense MLP are not kept."""

    def __init__(self, module: Any) -> None:
        attention = module.self_attn
        self._head_dim: int = attention.head_dim
        self.queries: int = attention.q_proj.out_features // self._head_dim
        self.key_heads: int = attention.k_proj.out_features // self._head_dim
        self._first_norm = make_norm(module.input_layernorm)
        self._second_norm = make_norm(module.post_attention_layernorm)
        self._in = fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = fuse(attention.o_proj)
        q_weight, k_weight = attention.q_norm.weight, attention.k_norm.weight
        per_head = (q_weight.expand(self.queries, -1), k_weight.expand(self.key_heads, -1))
        self._head_norm = Norm(torch.cat(per_head), attention.q_norm.variance_epsilon)
        self._mlp = Dense(module.mlp) if hasattr(module.mlp, "gate_proj") else Sparse(module.mlp)
        self.asks_device = self._mlp.asks_device

    def forward(self, rows: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """[n, hidden] of n new rows."""
        return self.leave(rows, attend(*self.split(self.enter(rows, rotation))))

    def enter(self, rows: Tensor, rotation: Rotation) -> Tensor:
        """Up to attention: queries, keys and values [n, queries + 2 * key heads, head_dim]."""
        heads = linear(self._first_norm(rows), *self._in).view(rows.shape[0], -1, self._head_dim)
        turned = self.queries + self.key_heads
        rotation.apply(self._head_norm(heads[:, :turned]), out=heads[:, :turned])
        return heads

    def split(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """What `Attend` takes, of what `enter` gave."""
        return heads[:, : self.queries], heads[:, self.queries :]

    def leave(self, rows: Tensor, mixed: Tensor) -> Tensor:
        """From attention on, what came of it [n, queries, head_dim]."""
        rows = rows + linear(mixed.reshape(rows.shape[0], -1), *self._out)
        return rows + self._mlp(self._second_norm(rows))


def make_norm(module: Any) -> Norm:
    """The norm of HF's module."""
    return Norm(module.weight, module.variance_epsilon)
