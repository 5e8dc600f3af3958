"""Runs a stack of decoder layers over a key/value cache, for the talker and its code predictor.

The modules and their mathematics are Hugging Face's; only the loop around them is
here, because `generate`, mask creation and `Cache` cost more per step than a small
model itself. Both models have the same layer: pre-norm attention with normed
queries and keys, rotary positions, grouped heads, pre-norm MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import apply_rotary_pos_emb


@dataclass(frozen=True, slots=True)
class StackShape:
    """What a cache must know of a stack."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class KeyValues:
    """Keys and values of one sequence in every layer: [layer, 2, 1, heads, capacity, head_dim].

    Grows by doubling, so that a sequence pays for its own length and not for the
    context limit. `length` counts the positions that all layers hold.
    """

    def __init__(self, shape: StackShape, capacity: int) -> None:
        self._shape = shape
        self._data = self._allocate(capacity)
        self.length = 0

    def reserve(self, positions: int) -> None:
        """Make room for so many positions behind `length`."""
        needed, capacity = self.length + positions, self._data.shape[4]
        if needed > capacity:
            grown = self._allocate(max(needed, 2 * capacity))
            grown[..., : self.length, :] = self._data[..., : self.length, :]
            self._data = grown

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write [1, heads, n, head_dim] behind `length`; all keys and values up to there."""
        end = self.length + keys.shape[2]
        data = self._data[layer]
        data[0, :, :, self.length : end] = keys
        data[1, :, :, self.length : end] = values
        return data[0, :, :, :end], data[1, :, :, :end]

    def _allocate(self, capacity: int) -> Tensor:
        shape = self._shape
        size = (shape.layers, 2, 1, shape.heads, capacity, shape.head_dim)
        return torch.empty(size, dtype=shape.dtype, device=shape.device)


class Decoder:
    """A stack with final norm; positions are plain 0, 1, 2, ... up to `max_positions`.

    `model` is a `Qwen3OmniMoeTalkerModel` or a `Qwen3OmniMoeTalkerCodePredictorModel`.
    """

    def __init__(self, model: Any, max_positions: int) -> None:
        weight = model.norm.weight
        attention = model.layers[0].self_attn
        heads = attention.k_proj.out_features // attention.head_dim
        self.shape = StackShape(
            len(model.layers), heads, attention.head_dim, weight.dtype, weight.device
        )
        self._layers = tuple(model.layers)
        self._norm: nn.Module = model.norm
        positions = torch.arange(max_positions, device=weight.device)[None]
        if hasattr(model.rotary_emb, "mrope_section"):
            positions = positions.expand(3, 1, -1)
        self._cos, self._sin = model.rotary_emb(weight, positions)

    def forward(self, rows: Tensor, cache: KeyValues) -> Tensor:
        """Append `rows` [n, hidden] to the sequence; their states after the final norm."""
        count, start = rows.shape[0], cache.length
        cache.reserve(count)
        rope = self._cos[:, start : start + count], self._sin[:, start : start + count]
        mask = self._mask(count, start)
        hidden = rows[None]
        for index, layer in enumerate(self._layers):
            normed = layer.input_layernorm(hidden)
            hidden = hidden + _attend(layer.self_attn, normed, cache, index, rope, mask)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        cache.length += count
        normed_hidden: Tensor = self._norm(hidden)
        return normed_hidden[0]

    def _mask(self, count: int, start: int) -> Tensor | None:
        """Which positions each of `count` new ones sees: itself and all before it."""
        if count == 1:
            return None
        full = torch.ones(count, start + count, dtype=torch.bool, device=self.shape.device)
        return full.tril(start)


def _attend(
    attention: Any,
    hidden: Tensor,
    cache: KeyValues,
    layer: int,
    rope: tuple[Tensor, Tensor],
    mask: Tensor | None,
) -> Tensor:
    """`Qwen3OmniMoeThinkerTextAttention.forward` (and the code predictor's) over the cache."""
    heads = (*hidden.shape[:-1], -1, attention.head_dim)
    queries = attention.q_norm(attention.q_proj(hidden).view(heads)).transpose(1, 2)
    keys = attention.k_norm(attention.k_proj(hidden).view(heads)).transpose(1, 2)
    values = attention.v_proj(hidden).view(heads).transpose(1, 2)
    queries, keys = apply_rotary_pos_emb(queries, keys, *rope)
    all_keys, all_values = cache.append(layer, keys, values)
    mixed = scaled_dot_product_attention(
        queries, all_keys, all_values, attn_mask=mask, scale=attention.scaling, enable_gqa=True
    )
    output: Tensor = attention.o_proj(mixed.transpose(1, 2).reshape(*hidden.shape[:-1], -1))
    return output
