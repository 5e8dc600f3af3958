"""Whisper's encoder for recordings of any length, and the projection to the language model.

Unlike in Whisper, a recording isn't padded to 30 s. Tensors have the same names as in OpenAI's
implementation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

KERNEL = 3


@dataclass(frozen=True, slots=True)
class WhisperSizes:
    """The sizes of the encoder. It can encode up to `positions` rows."""

    bins: int
    positions: int
    width: int
    heads: int
    layers: int


class WhisperEncoderModule(nn.Module):
    """The encoder. Its position embeddings are part of the checkpoint."""

    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        width = sizes.width
        self.conv1 = nn.Conv1d(sizes.bins, width, KERNEL, padding=1)
        self.conv2 = nn.Conv1d(width, width, KERNEL, stride=2, padding=1)
        self.positional_embedding = nn.Parameter(torch.empty(sizes.positions, width))
        self.blocks = nn.ModuleList(
            _RecordingBlock(width, sizes.heads) for _ in range(sizes.layers)
        )
        self.ln_post = nn.LayerNorm(width)

    def forward(self, features: Tensor) -> Tensor:
        """Encode mel features [n, bins, frames] to rows [n, ceil(frames / 2), width]."""
        rows = gelu(self.conv2(gelu(self.conv1(features)))).mT
        rows = rows + self.positional_embedding[: rows.shape[1]]
        for block in self.blocks:
            rows = block(rows)
        made: Tensor = self.ln_post(rows)
        return made


class _RecordingBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn_ln = nn.LayerNorm(width)
        self.attn = _SelfAttention(width, heads)
        self.mlp_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows [n, rows, width] to the block's output."""
        rows = rows + self.attn(self.attn_ln(rows))
        made: Tensor = rows + self.mlp(self.mlp_ln(rows))
        return made


class _SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, rows: Tensor) -> Tensor:
        """Attend from each row [n, rows, width] to all rows of the same recording."""
        query, key, value = (
            made(rows).unflatten(-1, (self._heads, -1)).transpose(1, 2)
            for made in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def audio_projection(
    inputs: int, outputs: int, *, kernel: int, stride: int, layers: int
) -> nn.Sequential:
    """Return a convolution over time, followed by linear layers.

    It maps encoder outputs [n, inputs, rows] to rows [n, rows / stride, outputs]. The modules
    between the layers hold no weights, but give the layers their numbers.
    """
    first = nn.Conv1d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
    made: list[nn.Module] = [first, _RowsLast()]
    for _ in range(1, layers):
        made += [nn.GELU(), nn.Linear(outputs, outputs)]
    return nn.Sequential(*made)


class _RowsLast(nn.Module):
    def forward(self, channels: Tensor) -> Tensor:
        """Swap the last two axes."""
        return channels.mT
