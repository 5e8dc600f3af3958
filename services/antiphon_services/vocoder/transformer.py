"""A vocoder's transformer, which only processes new frames.

With a window of w frames, frame i attends to frame j if i - w < j <= i. Each layer therefore keeps
the rotated keys and the values of the last w - 1 frames. Rows before the start of the stream are
zero and hidden by the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.errors import FailedPrecondition
from antiphon_services.lm.attention_calls import additive_mask
from antiphon_services.lm.rotary import Rotation
from antiphon_services.vocoder.batch import Batch, Level, Shape
from antiphon_services.vocoder.kernels import concatenated, scaled

FRAMES = Level()


@dataclass(frozen=True, slots=True)
class _Frames:
    """Data about the new frames that all layers share: the rotation, and a mask for the keys."""

    batch: Batch
    rotation: Rotation
    mask: Tensor


class SlidingTransformer:
    """A `StreamLayer` for rows [batch, frames, hidden]. Its outputs have the same shape."""

    def __init__(self, module: Any) -> None:
        config, rope_type = module.config, module.rotary_emb.rope_type
        if set(config.layer_types) - {"sliding_attention"} or config.sliding_window < 1:
            raise FailedPrecondition(
                f"vocoder: can't stream the attention layers {config.layer_types} with a window "
                f"of {config.sliding_window} frames"
            )
        # These types would change the frequencies of earlier positions as the stream grows.
        if "dynamic" in rope_type or rope_type == "longrope":
            raise FailedPrecondition(
                f"vocoder: can't stream rotary embeddings of the type {rope_type!r}"
            )
        with torch.no_grad():
            self._layers = [_TransformerLayer(layer) for layer in module.layers]
        self._window: int = config.sliding_window
        self._rotary = module.rotary_emb
        self._norm = module.norm

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The state shapes for each layer. The keys of all heads come first, side by side, followed
        by the values.
        """
        return tuple((self._window - 1, 2 * layer.key_size) for layer in self._layers)

    def advance(self, batch: Batch, past: Sequence[Tensor], x: Tensor) -> Tensor:
        """Compute the module's `forward` for the new frames."""
        positions = batch.seen[:, None] + torch.arange(x.shape[1], device=x.device)
        cosine, sine = self._rotary(x, positions)
        hidden = ~window_mask(positions, self._window)[:, None]
        mask = additive_mask(hidden, x.dtype)
        frames = _Frames(batch, Rotation.of_rows(cosine, sine), mask)
        for layer, tail in zip(self._layers, past, strict=True):
            x = layer.advance(frames, tail, x)
        y: Tensor = self._norm(x)
        return y


class _TransformerLayer:
    """Attention and an MLP. Layer scales are folded into the weights."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._attention_norm = layer.input_layernorm
        self._queries_keys_values = concatenated(
            attention.q_proj, attention.k_proj, attention.v_proj
        )
        self._attended = scaled(attention.o_proj, layer.self_attn_layer_scale.scale)
        self._mlp_norm = layer.post_attention_layernorm
        self._gate_up = concatenated(mlp.gate_proj, mlp.up_proj)
        self._act = mlp.act_fn
        self._down = scaled(mlp.down_proj, layer.mlp_layer_scale.scale)
        self._head_size = int(attention.head_dim)
        self._scaling = float(attention.scaling)
        self._query_size = int(attention.q_proj.out_features)
        self.key_size = int(attention.k_proj.out_features)

    def advance(self, frames: _Frames, tail: Tensor, x: Tensor) -> Tensor:
        """Compute the module's `forward` for the new frames."""
        attended = self._attend(frames, tail, self._attention_norm(x))
        x = self._attended(attended, plus=x)
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, dim=-1)
        return self._down(self._act(gate) * up, plus=x)

    def _attend(self, frames: _Frames, tail: Tensor, x: Tensor) -> Tensor:
        """Compute the `forward` of the attention module up to its last projection."""
        new, window = x.shape[1], tail.shape[1]
        rows = self._queries_keys_values(x)
        turned, value = torch.split(rows, [self._query_size + self.key_size, self.key_size], dim=-1)
        turned = frames.rotation.apply(turned.view(*x.shape[:2], -1, self._head_size)).flatten(2)
        query, key = torch.split(turned, [self._query_size, self.key_size], dim=-1)
        joined = frames.batch.extended(tail, new)
        keys, values = joined.chunk(2, dim=-1)
        keys[:, window:], values[:, window:] = key, value
        frames.batch.keep_last(tail, joined, FRAMES)
        attended = functional.scaled_dot_product_attention(
            self._heads(query),
            self._heads(keys),
            self._heads(values),
            attn_mask=frames.mask,
            scale=self._scaling,
            enable_gqa=self._query_size != self.key_size,
        )
        return attended.transpose(1, 2).flatten(2)

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape [batch, frames, heads * size] to [batch, heads, frames, size]."""
        return x.view(*x.shape[:2], -1, self._head_size).transpose(1, 2)


def window_mask(frames: Tensor, window: int) -> Tensor:
    """Return a bool mask [..., n, window - 1 + n] of the keys that each of the consecutive `frames`
    [..., n] attends to.

    The keys are those of the `window - 1` frames before the first one, followed by those of
    `frames`.
    """
    before = torch.arange(1 - window, 0, device=frames.device) + frames[..., :1]
    keys = torch.cat((before, frames), dim=-1)[..., None, :]
    queries = frames[..., None]
    return (keys >= 0) & (keys <= queries) & (keys > queries - window)
