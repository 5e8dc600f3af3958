"""One decoder layer, from the weights of Hugging Face's modules.

The talker and its code predictor have the same layer: pre-norm attention with
normed queries and keys, rotary positions and grouped heads, then a pre-norm MLP. A
frame runs it about a hundred times on one row, where the number of operations is
what it costs; so queries, keys and values are one product, normed and rotated as
one, and so are gate and up of a dense MLP. The mathematics and its rounding are
`Qwen3OmniMoeThinkerTextAttention`'s, `Qwen3OmniMoeTalkerCodePredictorAttention`'s
and `Qwen3OmniMoeRMSNorm`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention

# Takes keys and values [heads, n, head_dim] of new positions; returns those of all.
Remember = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and signed sines [n, 1, head_dim] of the positions of n rows."""

    cosines: Tensor
    sines: Tensor

    @classmethod
    def of(cls, rotary: Any, positions: int, like: Tensor) -> Rotation:
        """Of plain positions 0, 1, ... on all axes; `rotary` is the model's module."""
        index = torch.arange(positions, device=like.device)[None]
        if hasattr(rotary, "mrope_section"):
            index = index.expand(3, 1, -1)
        cosines, sines = (each[0, :, None] for each in rotary(like, index))
        low, high = sines.chunk(2, dim=-1)
        return cls(cosines, torch.cat((-low, high), dim=-1))

    def at(self, start: int, count: int) -> Rotation:
        """Of `count` positions from `start`."""
        return Rotation(self.cosines[start : start + count], self.sines[start : start + count])

    def apply(self, heads: Tensor) -> Tensor:
        """`apply_rotary_pos_emb` of [n, heads, head_dim]."""
        return heads * self.cosines + heads.roll(heads.shape[-1] // 2, -1) * self.sines


class Norm:
    """`Qwen3OmniMoeRMSNorm`: normed in float32, cast back, then weighted."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, rows: Tensor) -> Tensor:
        """The same shape and dtype; over the last dimension."""
        normed = rms_norm(rows.float(), rows.shape[-1:], eps=self._epsilon)
        return self._weight * normed.to(rows.dtype)


class Layer:
    """A decoder layer. `module` is HF's; its attention and dense MLP are not kept."""

    def __init__(self, module: Any) -> None:
        attention = module.self_attn
        self._head_dim: int = attention.head_dim
        self._queries = attention.q_proj.out_features // self._head_dim
        self.key_heads: int = attention.k_proj.out_features // self._head_dim
        self._scale: float = attention.scaling
        self._first_norm = make_norm(module.input_layernorm)
        self._second_norm = make_norm(module.post_attention_layernorm)
        self._in = _fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = _fuse(attention.o_proj)
        q_weight, k_weight = attention.q_norm.weight, attention.k_norm.weight
        per_head = (q_weight.expand(self._queries, -1), k_weight.expand(self.key_heads, -1))
        self._head_norm = Norm(torch.cat(per_head), attention.q_norm.variance_epsilon)
        self._mlp = _Dense(module.mlp) if hasattr(module.mlp, "gate_proj") else _Sparse(module.mlp)

    def forward(
        self, rows: Tensor, rotation: Rotation, mask: Tensor | None, remember: Remember
    ) -> Tensor:
        """[n, hidden] of n new positions; `mask` [n, all positions] is True where seen."""
        rows = rows + self._attend(self._first_norm(rows), rotation, mask, remember)
        return rows + self._mlp(self._second_norm(rows))

    def _attend(
        self, rows: Tensor, rotation: Rotation, mask: Tensor | None, remember: Remember
    ) -> Tensor:
        heads = linear(rows, *self._in).view(len(rows), -1, self._head_dim)
        turned = self._queries + self.key_heads
        rotated = rotation.apply(self._head_norm(heads[:, :turned])).transpose(0, 1)
        keys, values = remember(rotated[self._queries :], heads[:, turned:].transpose(0, 1))
        mixed = scaled_dot_product_attention(
            rotated[None, : self._queries],
            keys[None],
            values[None],
            attn_mask=mask,
            scale=self._scale,
            enable_gqa=True,
        )
        return linear(mixed[0].transpose(0, 1).reshape(len(rows), -1), *self._out)


class _Dense:
    """`Qwen3OmniMoeMLP`."""

    def __init__(self, module: Any) -> None:
        self._in = _fuse(module.gate_proj, module.up_proj)
        self._out = _fuse(module.down_proj)
        self._activate: Callable[[Tensor], Tensor] = module.act_fn

    def __call__(self, rows: Tensor) -> Tensor:
        gate, up = linear(rows, *self._in).chunk(2, dim=-1)
        return linear(self._activate(gate) * up, *self._out)


class _Sparse:
    """`Qwen3OmniMoeTalkerTextSparseMoeBlock`, as it is."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(self, rows: Tensor) -> Tensor:
        mixed: Tensor = self._module(rows[None])
        return mixed[0]


def make_norm(module: Any) -> Norm:
    """The norm of HF's module."""
    return Norm(module.weight, module.variance_epsilon)


def _fuse(*linears: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one product that gives the outputs of all, one after the other."""
    biases = [each.bias for each in linears if each.bias is not None]
    if len(linears) == 1:
        return linears[0].weight, linears[0].bias
    return torch.cat([each.weight for each in linears]), torch.cat(biases) if biases else None
