"""Qwen3-Omni's audio tower, which turns mel frames into rows of the thinker's width.

It performs the same operations in the same order as transformers' `Qwen3OmniMoeAudioEncoder` with
`sdpa` attention. `antiphon_services.qwen3_omni.thinker.towers` prepares the inputs of a call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon_services.lm.modules import activation

MAX_TIMESCALE = 10_000


@dataclass(frozen=True, slots=True)
class TowerOutput:
    """The tower's output. `last_hidden_state` has the shape [positions, width]."""

    last_hidden_state: Tensor


class AudioTowerModule(nn.Module):
    """All weights below `thinker.audio_tower.`. `config` is `audio_config`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, channels = config.d_model, config.downsample_hidden_size
        self.n_window: int = config.n_window
        self.n_window_infer: int = config.n_window_infer
        self._chunks_per_call: int = config.conv_chunksize
        sinusoids = _sinusoids(config.max_source_positions, width)
        self.positional_embedding = nn.Buffer(sinusoids, persistent=False)
        self.layers = nn.ModuleList(_TowerLayer(config) for _ in range(config.encoder_layers))
        self.ln_post = nn.LayerNorm(width)
        self.conv2d1 = nn.Conv2d(1, channels, 3, 2, padding=1)
        self.conv2d2 = nn.Conv2d(channels, channels, 3, 2, padding=1)
        self.conv2d3 = nn.Conv2d(channels, channels, 3, 2, padding=1)
        bins = (((config.num_mel_bins + 1) // 2 + 1) // 2 + 1) // 2
        self.conv_out = nn.Linear(channels * bins, width, bias=False)
        self.proj1 = nn.Linear(width, width)
        self.act = activation(config.activation_function)
        self.proj2 = nn.Linear(width, config.output_dim)

    def forward(
        self,
        *,
        padded_feature: Tensor,
        chunk_lengths: Tensor,
        valid_indices: Tensor,
        cu_seqlens: Tensor,
        return_dict: bool = True,
    ) -> TowerOutput:
        """Encode padded chunks [chunks, mel bins, frames].

        `valid_indices` contains the indices of rows that aren't padding, and `cu_seqlens` contains
        the boundaries of the attention windows among them. `chunk_lengths` and `return_dict` are
        part of the signature that transformers uses for towers and have no effect here.
        """
        del chunk_lengths, return_dict
        chunks = padded_feature.unsqueeze(1).to(dtype=self.conv2d1.weight.dtype)
        parts = [self._downsampled(each) for each in torch.split(chunks, self._chunks_per_call)]
        made = torch.cat(parts)
        count, channels, bins, frames = made.shape
        rows = made.permute(0, 3, 1, 2).contiguous().view(count, frames, channels * bins)
        rows = self.conv_out(rows)
        rows = rows + self.positional_embedding[:frames].unsqueeze(0).to(rows.dtype)
        rows = rows.reshape(-1, rows.shape[-1]).index_select(0, valid_indices)
        windows = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
        for layer in self.layers:
            rows = layer(rows, windows)
        return TowerOutput(self.proj2(self.act(self.proj1(self.ln_post(rows)))))

    def _downsampled(self, chunks: Tensor) -> Tensor:
        """Reduce the mel bins and the frames by a factor of 8."""
        for convolution in (self.conv2d1, self.conv2d2, self.conv2d3):
            chunks = functional.gelu(convolution(chunks))
        return chunks


class _TowerAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.d_model
        self._heads: int = config.encoder_attention_heads
        if width % self._heads:
            raise ValueError(
                f"d_model {width} is not a multiple of the number of heads, {self._heads}"
            )
        self._scale = (width // self._heads) ** -0.5
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, rows: Tensor, windows: list[int]) -> Tensor:
        """Apply attention within each window."""
        projected = (self.q_proj(rows), self.k_proj(rows), self.v_proj(rows))
        heads = [
            each.view(len(rows), self._heads, -1).transpose(0, 1).unsqueeze(0) for each in projected
        ]
        parts = zip(*(torch.split(each, windows, dim=2) for each in heads), strict=True)
        scale = self._scale
        mixed = [
            functional.scaled_dot_product_attention(query, key, value, scale=scale).transpose(1, 2)
            for query, key, value in parts
        ]
        out: Tensor = self.out_proj(torch.cat(mixed, 1).reshape(len(rows), -1))
        return out


class _TowerLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.d_model
        self.self_attn = _TowerAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.activation_fn = activation(config.activation_function)
        self.fc1 = nn.Linear(width, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, rows: Tensor, windows: list[int]) -> Tensor:
        """Apply attention and the MLP, each with a residual connection."""
        rows = rows + self.self_attn(self.self_attn_layer_norm(rows), windows)
        inner = self.activation_fn(self.fc1(self.final_layer_norm(rows)))
        rows = rows + self.fc2(inner)
        if rows.dtype == torch.float16:
            most = torch.finfo(rows.dtype).max - 1000
            rows = rows.clamp(min=-most, max=most)
        return rows


def _sinusoids(length: int, channels: int) -> Tensor:
    """Return sines followed by cosines of each position, [length, channels]."""
    step = math.log(MAX_TIMESCALE) / (channels // 2 - 1)
    scales = torch.exp(-step * torch.arange(channels // 2).float())
    times = torch.arange(length)[:, None] * scales[None, :]
    return torch.cat([torch.sin(times), torch.cos(times)], dim=1)
