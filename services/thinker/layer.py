"""One decoder layer of the thinker, from the weights of Hugging Face's modules.

Rows of any number of sequences go through it as one flat batch [n, hidden]; only
attention, which the caller brings, knows which row belongs to which sequence. The
mathematics and its rounding are those of `Qwen3OmniMoeThinkerTextDecoderLayer`; what
differs is that queries, keys and values are one product, normed and rotated as one,
and that experts are one grouped product over rows sorted by expert, which needs
neither a loop nor a look at the device's choices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm, linear, rms_norm

# Takes queries [n, heads, d], keys and values [n, key heads, d] of the batch, remembers
# the last two and returns what every row saw, [n, heads * d].
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and signed sines [n, 1, head_dim] of the positions of n rows."""

    cosines: Tensor
    sines: Tensor

    @classmethod
    def of(cls, rotary: Any, positions: int, like: Tensor) -> Rotation:
        """Of positions 0, 1, ... on all three axes; `rotary` is the model's module."""
        index = torch.arange(positions, device=like.device).expand(3, 1, -1)
        cosines, sines = (each[0, :, None] for each in rotary(like, index))
        low, high = sines.chunk(2, dim=-1)
        return cls(cosines, torch.cat((-low, high), dim=-1))

    def at(self, positions: Tensor) -> Rotation:
        """Of these positions, int64 [n]."""
        return Rotation(self.cosines[positions], self.sines[positions])

    def apply(self, heads: Tensor) -> Tensor:
        """`apply_rotary_pos_emb` of [n, heads, head_dim]."""
        return heads * self.cosines + heads.roll(heads.shape[-1] // 2, -1) * self.sines


class Norm:
    """`Qwen3OmniMoeThinkerTextRMSNorm`: normed in float32, cast back, then weighted."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon

    @classmethod
    def of(cls, module: Any) -> Norm:
        """The norm of HF's module."""
        return cls(module.weight, module.variance_epsilon)

    def __call__(self, rows: Tensor) -> Tensor:
        """The same shape and dtype; over the last dimension."""
        normed = rms_norm(rows.float(), rows.shape[-1:], eps=self._epsilon)
        return self._weight * normed.to(rows.dtype)


class Layer:
    """A decoder layer. `module` is HF's; its attention's weights are not kept."""

    def __init__(self, module: Any) -> None:
        attention = module.self_attn
        self._head_dim: int = attention.head_dim
        self._heads = attention.q_proj.out_features // self._head_dim
        self.key_heads: int = attention.k_proj.out_features // self._head_dim
        self._first_norm = Norm.of(module.input_layernorm)
        self._second_norm = Norm.of(module.post_attention_layernorm)
        self._in = _fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out: Product = attention.o_proj
        q_weight, k_weight = attention.q_norm.weight, attention.k_norm.weight
        per_head = (q_weight.expand(self._heads, -1), k_weight.expand(self.key_heads, -1))
        self._head_norm = Norm(torch.cat(per_head), attention.q_norm.variance_epsilon)
        dense = not hasattr(module.mlp, "experts")
        self._mlp: Product = module.mlp if dense else SparseMlp(module.mlp)

    def __call__(self, rows: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """The states [n, hidden] of n rows after this layer."""
        turned = self._heads + self.key_heads
        projected = linear(self._first_norm(rows), *self._in)
        heads = projected.view(len(rows), -1, self._head_dim)
        rotated = rotation.apply(self._head_norm(heads[:, :turned]))
        seen = attend(rotated[:, : self._heads], rotated[:, self._heads :], heads[:, turned:])
        rows = rows + self._out(seen)
        return rows + self._mlp(self._second_norm(rows))


class SparseMlp:
    """`Qwen3OmniMoeThinkerTextSparseMoeBlock` over its own weights."""

    def __init__(self, module: Any) -> None:
        self._router: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]] = module.gate
        self._activate: Product = module.experts.act_fn
        self._experts: int = module.experts.num_experts
        self._in: Tensor = module.experts.gate_up_proj.transpose(1, 2)
        self._out: Tensor = module.experts.down_proj.transpose(1, 2)

    def __call__(self, rows: Tensor) -> Tensor:
        """The weighted sum [n, hidden] of every row's experts."""
        _, weights, chosen = self._router(rows)
        by_expert = chosen.flatten().argsort()
        counts = torch.zeros(self._experts, dtype=torch.int32, device=rows.device)
        counts.index_add_(0, chosen.flatten(), torch.ones_like(by_expert, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        owners = by_expert // chosen.shape[1]
        gate, up = grouped_mm(rows[owners], self._in, offs=ends).chunk(2, dim=-1)
        mixed = grouped_mm(self._activate(gate) * up, self._out, offs=ends)
        mixed = mixed * weights.flatten()[by_expert, None]
        return torch.zeros_like(rows).index_add_(0, owners, mixed)


def _fuse(*linears: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one product that gives the outputs of all, one after the other."""
    biases = [each.bias for each in linears if each.bias is not None]
    return torch.cat([each.weight for each in linears]), torch.cat(biases) if biases else None
