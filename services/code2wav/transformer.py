"""`Qwen3OmniMoeCode2WavTransformerModel`, advanced by new frames only.

A window of w frames: frame j is visible to frame i if i - w < j <= i. So each
layer keeps the rotated keys and the values of the last w - 1 frames. Slots of
frames before the stream's start hold zeros, and the mask hides them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavAttention,
    Qwen3OmniMoeCode2WavTransformerLayer,
    Qwen3OmniMoeCode2WavTransformerModel,
    apply_rotary_pos_emb,
)

from antiphon.errors import FailedPrecondition
from services.code2wav.layers import Shape, keep_last

Rotary = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class SlidingTransformer:
    """A `Layer`: [1, hidden, n] frames in, as many out."""

    module: Qwen3OmniMoeCode2WavTransformerModel

    def __post_init__(self) -> None:
        config, rope_type = self.module.config, self.module.rotary_emb.rope_type
        if set(config.layer_types) - {"sliding_attention"} or config.sliding_window < 1:
            raise FailedPrecondition(
                f"code2wav: cannot stream the attention layers {config.layer_types} "
                f"with a window of {config.sliding_window} frames"
            )
        # These change the frequencies of earlier positions as the stream grows.
        if "dynamic" in rope_type or rope_type == "longrope":
            raise FailedPrecondition(f"code2wav: cannot stream rotary embeddings {rope_type!r}")

    @property
    def _layers(self) -> list[Qwen3OmniMoeCode2WavTransformerLayer]:
        return cast("list[Qwen3OmniMoeCode2WavTransformerLayer]", list(self.module.layers))

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """Keys and values of each layer: [kv heads, window - 1, head size]."""
        config = self.module.config
        return tuple(
            (config.num_key_value_heads, config.sliding_window - 1, layer.self_attn.head_dim)
            for layer in self._layers
            for _ in ("keys", "values")
        )

    def outputs(self, inputs: int) -> int:
        """As many as inputs."""
        return inputs

    def advance(self, state: Sequence[Tensor], x: Tensor, seen: int) -> Tensor:
        """As `Qwen3OmniMoeCode2WavTransformerModel.forward`, over the new frames."""
        hidden = x.transpose(1, 2)
        frames = torch.arange(seen, seen + x.shape[-1], device=x.device)
        rotary: Rotary = self.module.rotary_emb(hidden, frames[None])
        visible = window_mask(frames, self.module.config.sliding_window)
        pairs = zip(state[::2], state[1::2], strict=True)
        for layer, (keys, values) in zip(self._layers, pairs, strict=True):
            hidden = _advance_layer(layer, keys, values, hidden, rotary, visible)
        y: Tensor = self.module.norm(hidden)
        return y.transpose(1, 2)


def window_mask(frames: Tensor, window: int) -> Tensor:
    """Which keys each of the consecutive `frames` [n] sees: bool [n, window - 1 + n].

    Keys are the `window - 1` frames before the first and then `frames` themselves.
    """
    first = frames[:1]
    before = torch.arange(1 - window, 0, device=frames.device) + first
    keys = torch.cat((before, frames))
    queries = frames[:, None]
    return (keys >= 0) & (keys <= queries) & (keys > queries - window)


def _advance_layer(
    layer: Qwen3OmniMoeCode2WavTransformerLayer,
    keys: Tensor,
    values: Tensor,
    hidden: Tensor,
    rotary: Rotary,
    visible: Tensor,
) -> Tensor:
    """As `Qwen3OmniMoeCode2WavTransformerLayer.forward`, [1, n, hidden] in and out."""
    normed = layer.input_layernorm(hidden)
    attended = _attend(layer.self_attn, keys, values, normed, rotary, visible)
    hidden = hidden + layer.self_attn_layer_scale(attended)
    expanded = layer.mlp(layer.post_attention_layernorm(hidden))
    y: Tensor = hidden + layer.mlp_layer_scale(expanded)
    return y


def _attend(
    attention: Qwen3OmniMoeCode2WavAttention,
    keys: Tensor,
    values: Tensor,
    hidden: Tensor,
    rotary: Rotary,
    visible: Tensor,
) -> Tensor:
    """As `Qwen3OmniMoeCode2WavAttention.forward`; moves the new keys and values in."""
    batch, length, _ = hidden.shape
    heads = (batch, length, -1, attention.head_dim)
    query = attention.q_norm(attention.q_proj(hidden).view(heads)).transpose(1, 2)
    key = attention.k_norm(attention.k_proj(hidden).view(heads)).transpose(1, 2)
    value = attention.v_proj(hidden).view(heads).transpose(1, 2)
    query, key = apply_rotary_pos_emb(query, key, *rotary)
    key, value = torch.cat((keys, key), dim=2), torch.cat((values, value), dim=2)
    keep_last(keys, key, dim=2)
    keep_last(values, value, dim=2)
    attended = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=visible,
        scale=attention.scaling,
        enable_gqa=attention.num_key_value_groups > 1,
    )
    y: Tensor = attention.o_proj(attended.transpose(1, 2).reshape(batch, length, -1))
    return y
