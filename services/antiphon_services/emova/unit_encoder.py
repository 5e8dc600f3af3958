"""Encodes speech units with a transformer that uses relative positions (VITS, arXiv 2106.06103).

All tensors have the shape [channels, n] and contain a single utterance. Utterances are not batched,
so the result does not depend on other requests.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, pad

from antiphon_services.emova.unit_decoder_sizes import ATTENTION_WINDOW, UnitDecoderSizes


class ChannelNorm(nn.Module):
    """Layer normalization over the channels of a [channels, n] tensor."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.GAMMA = nn.Parameter(torch.empty(channels))
        self.BETA = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each column."""
        return layer_norm(x.T, (len(self.GAMMA),), self.GAMMA, self.BETA, 1e-5).T


class UnitEncoder(nn.Module):
    """Computes the latent distribution of each unit, and the rows from which durations are
    predicted.
    """

    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        self.emb = nn.Embedding(sizes.symbols, sizes.hidden)
        self.encoder = _Layers(sizes)
        self.proj = nn.Conv1d(sizes.hidden, 2 * sizes.latent, 1)

    def forward(self, symbols: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode symbols of shape [n].

        Returns rows of shape [hidden, n], followed by means and log deviations, both of shape
        [latent, n].
        """
        rows = self.encoder((self.emb(symbols) * math.sqrt(self.emb.embedding_dim)).T)
        means, logs = self.proj(rows).chunk(2)
        return rows, means, logs


class _Layers(nn.Module):
    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        count = range(sizes.layers)
        self.attn_layers = nn.ModuleList(_RelativeAttention(sizes) for _ in count)
        self.norm_layers_1 = nn.ModuleList(ChannelNorm(sizes.hidden) for _ in count)
        self.ffn_layers = nn.ModuleList(_FeedForward(sizes) for _ in count)
        self.norm_layers_2 = nn.ModuleList(ChannelNorm(sizes.hidden) for _ in count)

    def forward(self, x: Tensor) -> Tensor:
        each = (self.attn_layers, self.norm_layers_1, self.ffn_layers, self.norm_layers_2)
        for attend, first, feed, second in zip(*each, strict=True):
            x = first(x + attend(x))
            x = second(x + feed(x))
        return x


class _RelativeAttention(nn.Module):
    """Attention with learned embeddings of relative positions up to `ATTENTION_WINDOW`.

    The heads share these embeddings.
    """

    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        width, distances = sizes.hidden, 2 * ATTENTION_WINDOW + 1
        self.heads = sizes.heads
        self.conv_q = nn.Conv1d(width, width, 1)
        self.conv_k = nn.Conv1d(width, width, 1)
        self.conv_v = nn.Conv1d(width, width, 1)
        self.conv_o = nn.Conv1d(width, width, 1)
        self.emb_rel_k = nn.Parameter(torch.empty(1, distances, width // self.heads))
        self.emb_rel_v = nn.Parameter(torch.empty(1, distances, width // self.heads))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            made.view(self.heads, -1, made.shape[-1]).transpose(1, 2)
            for made in (self.conv_q(x), self.conv_k(x), self.conv_v(x))
        )
        query = query / math.sqrt(query.shape[-1])
        near = _Near(x.shape[-1], x.device)
        scores = query @ key.transpose(1, 2)
        scores = scores + near.spread(query @ self.emb_rel_k[0].T)
        shares = scores.softmax(-1)
        made = shares @ value + near.gathered(shares) @ self.emb_rel_v[0]
        out: Tensor = self.conv_o(made.transpose(1, 2).reshape(x.shape))
        return out


class _Near:
    """Maps between row indices and relative positions within the attention window."""

    def __init__(self, count: int, device: torch.device) -> None:
        rows = torch.arange(count, device=device)
        self._distance = rows - rows[:, None] + ATTENTION_WINDOW
        self._outside = (self._distance < 0) | (self._distance > 2 * ATTENTION_WINDOW)
        self._column = rows[:, None] + torch.arange(2 * ATTENTION_WINDOW + 1, device=device)

    def spread(self, by_distance: Tensor) -> Tensor:
        """Convert [heads, n, distances] to [heads, n, n]. Positions outside the window become 0."""
        index = self._distance.clamp(0, 2 * ATTENTION_WINDOW).expand(len(by_distance), -1, -1)
        return by_distance.gather(2, index).masked_fill(self._outside, 0.0)

    def gathered(self, by_row: Tensor) -> Tensor:
        """Convert [heads, n, n] to [heads, n, distances].

        Positions before the first row or after the last row become 0.
        """
        padded = pad(by_row, (ATTENTION_WINDOW, ATTENTION_WINDOW))
        return padded.gather(2, self._column.expand(len(by_row), -1, -1))


class _FeedForward(nn.Module):
    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        self.padding = (sizes.kernel - 1) // 2, sizes.kernel // 2
        self.conv_1 = nn.Conv1d(sizes.hidden, sizes.inner, sizes.kernel)
        self.conv_2 = nn.Conv1d(sizes.inner, sizes.hidden, sizes.kernel)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv_1(pad(x, self.padding)).relu()
        out: Tensor = self.conv_2(pad(inner, self.padding))
        return out
