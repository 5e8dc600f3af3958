"""LLaDA, a transformer in which every position of a sequence attends to all positions.

The modules have the same names as the tensors in released checkpoints (`model.transformer.*`), and
the configuration is a checkpoint's `config.json`. The layers are the same as Llama's, with rotary
positions, RMS norms and a gated MLP (GSAI-ML/LLaDA-8B, `LLaDALlamaBlock`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from antiphon_services.lm.modules import RMSNorm


class Llada(nn.Module):
    """The module at `model.transformer.`. `ff_out` is the head."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, size = config.d_model, config.embedding_size or config.vocab_size
        self.wte = nn.Embedding(size, width)
        self.blocks = nn.ModuleList(LladaBlock(config) for _ in range(config.n_layers))
        self.ln_f = RMSNorm(width, config.rms_norm_eps)
        self.ff_out = nn.Linear(width, size, bias=False)
        self.head_dim: int = width // config.n_heads
        self.rope_theta: float = config.rope_theta

    def forward(self, ids: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return the rows before the head [n, length, width] for IDs int64 [n, length].

        `seen` (bool [n, length]) is False for padding, which no position attends to. At least one
        position in each sequence must be True. If `seen` is None, there is no padding.
        """
        rotation = self._rotation(ids.shape[1], ids.device)
        mask = None if seen is None else seen[:, None, None, :]
        rows: Tensor = self.wte(ids)
        for block in self.blocks:
            rows = block(rows, rotation, mask)
        normed: Tensor = self.ln_f(rows)
        return normed

    def _rotation(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cosines and sines as float32 [length, head_dim]."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device)
        frequencies = 1.0 / self.rope_theta ** (exponents / self.head_dim)
        positions = torch.arange(length, dtype=torch.float32, device=device)
        angles = (positions[:, None] * frequencies).repeat(1, 2)
        return angles.cos(), angles.sin()


class LladaBlock(nn.Module):
    """Attention over the entire sequence and a gated MLP, each preceded by a norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner = config.d_model, config.mlp_hidden_size
        self.heads: int = config.n_heads
        self.kv_heads: int = config.n_kv_heads or config.n_heads
        keys = width // self.heads * self.kv_heads
        self.attn_norm = RMSNorm(width, config.rms_norm_eps)
        self.ff_norm = RMSNorm(width, config.rms_norm_eps)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.ff_out = nn.Linear(inner, width, bias=False)

    def forward(self, rows: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Return the block's output [n, length, width]. `mask` (bool [n, 1, 1, length]) is True for
        keys that may be attended to.
        """
        normed = self.attn_norm(rows)
        queries = _rotate(_split(self.q_proj(normed), self.heads), rotation)
        keys = _rotate(_split(self.k_proj(normed), self.kv_heads), rotation)
        values = _split(self.v_proj(normed), self.kv_heads)
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=self.kv_heads != self.heads
        )
        rows = rows + self.attn_out(mixed.transpose(1, 2).flatten(2))
        normed = self.ff_norm(rows)
        gated: Tensor = self.ff_out(silu(self.ff_proj(normed)) * self.up_proj(normed))
        return rows + gated


def _split(rows: Tensor, heads: int) -> Tensor:
    """Reshape [n, length, heads * head_dim] to [n, heads, length, head_dim]."""
    return rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of each head in float32."""
    cosines, sines = rotation
    wide = heads.to(torch.float32)
    low, high = wide.chunk(2, dim=-1)
    turned = wide * cosines + torch.cat((-high, low), dim=-1) * sines
    return turned.to(heads.dtype)
