"""Layers that the MAGVITv2 encoder and decoder share.

All tensors have the shape [1, channels, rows, columns].
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, silu

GROUPS = 32
"""The number of groups in each normalization layer."""


def group_norm(channels: int) -> nn.GroupNorm:
    """Create a group normalization layer."""
    return nn.GroupNorm(GROUPS, channels, eps=1e-6)


def same_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Create a 3x3 convolution that preserves the number of rows and columns."""
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class ResidualPixels(nn.Module):
    """A residual block with two convolutions, each preceded by a normalization layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = group_norm(inputs)
        self.conv1 = same_convolution(inputs, outputs)
        self.norm2 = group_norm(outputs)
        self.conv2 = same_convolution(outputs, outputs)
        self.nin_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the input and the output of the block."""
        made = self.conv2(silu(self.norm2(self.conv1(silu(self.norm1(x))))))
        sum_: Tensor = (x if self.nin_shortcut is None else self.nin_shortcut(x)) + made
        return sum_


class PixelAttention(nn.Module):
    """A residual block with single-head attention over all pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the input and the output of the block."""
        normed = self.norm(x)
        query, key, value = (made(normed).flatten(2) for made in (self.q, self.k, self.v))
        scores = query.transpose(1, 2) @ key * x.shape[1] ** -0.5
        made = (value @ scores.softmax(2).transpose(1, 2)).view(x.shape)
        sum_: Tensor = x + self.proj_out(made)
        return sum_


class MiddlePixels(nn.Module):
    """The layers at the lowest resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1 = ResidualPixels(channels, channels)
        self.attn_1 = PixelAttention(channels)
        self.block_2 = ResidualPixels(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers in order."""
        out: Tensor = self.block_2(self.attn_1(self.block_1(x)))
        return out


class HalvedPixels(nn.Module):
    """Halves the number of rows and columns."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Pad the input after the last row and the last column. Then apply the convolution."""
        out: Tensor = self.conv(pad(x, (0, 1, 0, 1)))
        return out


class DoubledPixels(nn.Module):
    """Doubles the number of rows and columns."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = same_convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Repeat each row and column. Then apply the convolution."""
        out: Tensor = self.conv(interpolate(x, scale_factor=2.0, mode="nearest"))
        return out


class PixelLevel(nn.Module):
    """The blocks at one resolution. All levels except the last one then change the resolution."""

    def __init__(self, widths: tuple[int, ...], change: type[nn.Module] | None, name: str) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            ResidualPixels(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)
        )
        self._change = name if change else ""
        if change is not None:
            setattr(self, name, change(widths[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the blocks and then change the resolution."""
        for block in self.block:
            x = block(x)
        if self._change:
            x = getattr(self, self._change)(x)
        return x


def codebook_vectors(ids: Tensor, bits: int) -> Tensor:
    """Convert int64 tokens of shape [n] to vectors of shape [n, bits].

    Each set bit becomes 1 and each cleared bit becomes -1, starting with the highest bit.
    """
    return (ids[:, None] >> _shifts(bits, ids.device) & 1) * 2.0 - 1.0


def codebook_ids(vectors: Tensor) -> Tensor:
    """Convert vectors of shape [n, bits] to int64 tokens of shape [n].

    A bit is set if the number is positive.
    """
    bits = vectors.shape[1]
    return ((vectors > 0).long() << _shifts(bits, vectors.device)).sum(1)


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(bits - 1, -1, -1, device=device)
