"""The weights of the thinker. Tensors have the same names as in Ming-flash-omni's checkpoint.

`antiphon_services.lm` computes with the language model, which expects the names of Qwen's modules.
The fused projection of queries, keys and values is split for this purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from antiphon_services.lm.group_limited import GroupLimitedMLP
from antiphon_services.lm.modules import GatedMLP, RMSNorm
from antiphon_services.lm.partial_rotary import AlternatingRotaryEmbedding, in_halves
from antiphon_services.ming_flash_omni.thinker.text_config import ROTATED, SPATIAL, BailingConfig
from antiphon_services.ming_flash_omni.thinker.vision_tower import VisionSizes, VisionTowerModule
from antiphon_services.ming_flash_omni.thinker.whisper_encoder import (
    WhisperEncoderModule,
    WhisperSizes,
    audio_projection,
)
from antiphon_services.thinker.towers import TowerInputs

GATES = ("gate", "image_gate", "audio_gate")
"""The routers, in the order of the kinds of rows in `antiphon_services.thinker.model`."""


@dataclass(frozen=True, slots=True)
class FlashThinkerParts:
    """The configurations of the language model, the encoders and the projections."""

    text: BailingConfig
    audio: WhisperSizes
    vision: VisionSizes
    projection_layers: int
    downsampling_kernel: int
    downsampling_stride: int
    normalizes_audio: bool


class FlashThinkerModule(nn.Module):
    """The thinker's weights, with the interface that `antiphon_services.thinker.model` requires."""

    def __init__(self, parts: FlashThinkerParts) -> None:
        super().__init__()
        self._normalizes_audio = parts.normalizes_audio
        self.model = _LanguageModel(parts.text)
        self.audio = WhisperEncoderModule(parts.audio)
        self.linear_proj_audio = audio_projection(
            parts.audio.width,
            parts.text.hidden_size,
            kernel=parts.downsampling_kernel,
            stride=parts.downsampling_stride,
            layers=parts.projection_layers,
        )
        self.vision: VisionTowerModule | None = VisionTowerModule(parts.vision)
        projection: list[nn.Module] = [nn.Linear(parts.vision.outputs, parts.text.hidden_size)]
        for _ in range(1, parts.projection_layers):
            projection += [nn.GELU(), nn.Linear(parts.text.hidden_size, parts.text.hidden_size)]
        self.linear_proj: nn.Sequential | None = nn.Sequential(*projection)

    @property
    def device(self) -> torch.device:
        """The device that stores the weights."""
        weight: Tensor = self.lm_head.weight
        return weight.device

    @property
    def lm_head(self) -> nn.Linear:
        """The output head of the language model."""
        return self.model.lm_head

    def audio_tower(self, *, features: Tensor, return_dict: bool) -> SimpleNamespace:
        """Encode the mel features of a recording, a float32 tensor of shape [bins, frames]."""
        given = features[None].to(self.lm_head.weight.dtype)
        rows: Tensor = self.linear_proj_audio(self.audio(given).mT)[0]
        if self._normalizes_audio:
            rows = normalize(rows, dim=-1)
        return SimpleNamespace(last_hidden_state=rows)

    @property
    def visual(self) -> VisionWithProjection | None:
        """The vision tower, or None if it isn't loaded."""
        if self.vision is None or self.linear_proj is None:
            return None
        return VisionWithProjection(self.vision, self.linear_proj)


@dataclass(frozen=True, slots=True)
class VisionWithProjection:
    """The vision tower and the projection of its rows, which get the length 1."""

    tower: VisionTowerModule
    projection: nn.Sequential

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of patches."""
        weight: Tensor = self.tower.patch_embed.proj.weight
        return weight.dtype

    def __call__(self, patches: Tensor, *, grid_thw: Tensor, return_dict: bool) -> SimpleNamespace:
        """Encode the patches [n, values] of an image. `grid_thw` is int64 [1, 3]."""
        _, rows, columns = grid_thw[0].tolist()
        made = self.projection(self.tower(patches, rows, columns))
        return SimpleNamespace(pooler_output=normalize(made, dim=-1))


class _LanguageModel(nn.Module):
    def __init__(self, config: BailingConfig) -> None:
        super().__init__()
        self.model = _BailingStack(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._rotary = config.head_dim or 0, float(config.rope_theta)

    @property
    def embed_tokens(self) -> nn.Embedding:
        """The embedding table."""
        return self.model.word_embeddings

    @property
    def layers(self) -> nn.ModuleList:
        """The layers."""
        return self.model.layers

    @property
    def norm(self) -> RMSNorm:
        """The norm after the last layer."""
        return self.model.norm

    @property
    def rotary_emb(self) -> AlternatingRotaryEmbedding:
        """The rotary embedding."""
        width, theta = self._rotary
        return AlternatingRotaryEmbedding(width, ROTATED, theta=theta, spatial=SPATIAL)


class _BailingStack(nn.Module):
    def __init__(self, config: BailingConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            _BailingLayer(config, at) for at in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class _BailingLayer(nn.Module):
    def __init__(self, config: BailingConfig, index: int) -> None:
        super().__init__()
        assert config.head_dim is not None
        assert config.intermediate_size is not None
        self.attention = _FusedAttention(config, config.head_dim)
        self.mlp: nn.Module = (
            GatedMLP(config, config.intermediate_size)
            if index < config.first_k_dense_replace
            else GroupLimitedMLP(config, GATES)
        )
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    @cached_property
    def self_attn(self) -> SimpleNamespace:
        """The attention under the names of Qwen's modules, with heads in the order of
        `lm.partial_rotary`.

        The fused projection is released, because the parts of it replace it.
        """
        return self.attention.split()


class _FusedAttention(nn.Module):
    def __init__(self, config: BailingConfig, head_dim: int) -> None:
        super().__init__()
        self._head_dim = head_dim
        self._heads = config.num_attention_heads, config.num_key_value_heads
        count = config.num_attention_heads + 2 * config.num_key_value_heads
        self.query_key_value = nn.Linear(config.hidden_size, count * head_dim, bias=False)
        self.dense = nn.Linear(
            config.num_attention_heads * head_dim, config.hidden_size, bias=False
        )
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)

    def split(self) -> SimpleNamespace:
        """Return the parts, and release the fused projection."""
        queries, keys = self._heads
        fused: Any = self.query_key_value
        order = in_halves(self._head_dim, ROTATED).to(fused.weight.device)
        heads = fused.weight.unflatten(0, (-1, self._head_dim))
        query, key, value = heads.split((queries, keys, keys))
        self.query_key_value = None  # type: ignore[assignment]
        for norm in (self.q_norm, self.k_norm):
            norm.weight = nn.Parameter(norm.weight[order], requires_grad=False)
        return SimpleNamespace(
            head_dim=self._head_dim,
            scaling=self._head_dim**-0.5,
            q_proj=_linear(query[:, order]),
            k_proj=_linear(key[:, order]),
            v_proj=_linear(value),
            o_proj=self.dense,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
        )


def _linear(heads: Tensor) -> nn.Linear:
    """Return a projection with the weights [heads, head_dim, inputs]."""
    weight = heads.flatten(0, 1)
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


class FlashTowers:
    """Implements `antiphon_services.thinker.towers.TowerPlan`."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """Yield the features of one recording at a time."""
        for recording in torch.split(features, frames.tolist(), dim=1):
            yield {"features": recording}

    def vision(self, tower: Any, grid: Tensor) -> TowerInputs:
        """Return nothing, because the tower only needs the grid."""
        return {}
