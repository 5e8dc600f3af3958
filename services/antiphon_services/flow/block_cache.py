"""Block-causal attention for a growing sequence, with keys and values cached in pages.

A row attends to its own block and to all earlier blocks, so a block never changes once it has been
computed. A growing sequence can therefore be computed block by block. The keys and values that
later blocks read must be cached for each evaluation of the flow and for each layer. A page contains
the cache of one block. A stage has a fixed number of pages for all sequences. A sequence caches as
many of its first blocks as it has pages for. It computes all later blocks again, with the same
result.

Keys and values have the shape [sequences, 2, rows, heads, head_dim]. The sequences are the two
halves of a guided batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from antiphon_services.flow.layer import AllRows


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The dimensions of a block's cache. It has `frames` rows for each of `sequences` sequences,
    separately for each evaluation and layer.
    """

    evaluations: int
    layers: int
    sequences: int
    frames: int
    heads: int
    head_dim: int

    @property
    def page(self) -> tuple[int, ...]:
        """The shape of a page: [evaluations, layers, sequences, 2, frames, heads, head_dim]."""
        rows = (self.frames, self.heads, self.head_dim)
        return (self.evaluations, self.layers, self.sequences, 2, *rows)

    @property
    def page_bytes(self) -> int:
        """The size of a page in bytes, in float32."""
        return math.prod(self.page) * torch.float32.itemsize


class BlockPages:
    """A stage's pages. Their number is limited by `cache_bytes`."""

    def __init__(self, shape: BlockShape, cache_bytes: int, device: torch.device) -> None:
        self.shape = shape
        self.count = cache_bytes // shape.page_bytes
        self.memory = torch.empty((self.count, *shape.page), device=device)
        self._free = list(range(self.count))

    @property
    def free(self) -> int:
        """The number of free pages."""
        return len(self._free)

    def take(self, most: int) -> list[int]:
        """Take up to `most` pages and return their numbers."""
        taken = self._free[:most]
        del self._free[: len(taken)]
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        """Free pages."""
        self._free += pages


class BlockCache:
    """The cache for the first `blocks` blocks of a sequence."""

    def __init__(self, pages: BlockPages) -> None:
        self.pages = pages
        self.blocks = 0
        self._held: list[int] = []
        # For each evaluation and convolution, the last inputs before the first row that is not
        # cached.
        self.tails: dict[tuple[int, int], Tensor] = {}

    @property
    def kept(self) -> Sequence[int]:
        """The pages of the cached blocks."""
        return self._held[: self.blocks]

    def extend(self, most: int) -> Sequence[int]:
        """Return pages for up to `most` blocks after the cached ones."""
        missing = self.blocks + most - len(self._held)
        if missing > 0:
            self._held += self.pages.take(missing)
        return self._held[self.blocks : self.blocks + most]

    def close(self) -> None:
        """Free the pages."""
        self.pages.give_back(self._held)
        self._held, self.blocks, self.tails = [], 0, {}


class BlockCausalRows(AllRows):
    """The rows after the blocks in `cache`, up to row `stop` of the sequence.

    If enough pages are available, the first `keep` of these blocks are written to the cache.
    `commit` then marks them as cached.
    """

    def __init__(self, cache: BlockCache, stop: int, keep: int) -> None:
        frames = cache.pages.shape.frames
        super().__init__(cache.blocks * frames, stop)
        self._cache, self._frames = cache, frames
        self._past = list(cache.kept)
        self._pages = list(cache.extend(keep))
        self._tails: dict[tuple[int, int], Tensor] = {}
        self._mask = self._make_mask(cache.pages.memory.device)

    def _make_mask(self, device: torch.device) -> Tensor | None:
        """Return a bool mask [rows, keys] that is True where a row attends to a key, or None if
        every row attends to all keys.
        """
        if self.stop - self.first <= self._frames:
            return None
        blocks = torch.arange(self.stop, device=device) // self._frames
        return blocks[self.first :, None] >= blocks

    def seen(self, own: Tensor, evaluation: int, window: int) -> tuple[Tensor, Tensor | None]:
        """Return the cached keys and values, followed by those of the rows."""
        frames, memory = self._frames, self._cache.pages.memory
        for number, page in enumerate(self._pages):
            memory[page, evaluation, window] = own[:, :, number * frames : (number + 1) * frames]
        if not self._past:
            return own, self._mask
        sequences, two, _, heads, width = own.shape
        joined = own.new_empty(sequences, two, self.stop, heads, width)
        for number, page in enumerate(self._past):
            joined[:, :, number * frames : (number + 1) * frames] = memory[page, evaluation, window]
        joined[:, :, self.first :] = own
        return joined, self._mask

    def preceded(self, x: Tensor, evaluation: int, convolution: int, reach: int) -> Tensor:
        """Return `x`, preceded by the last inputs of the cached blocks."""
        tail = self._cache.tails.get((evaluation, convolution))
        joined = pad(x, (reach, 0)) if tail is None else torch.cat((tail, x), dim=2)
        if self._pages:
            kept = len(self._pages) * self._frames
            self._tails[evaluation, convolution] = joined[:, :, kept : kept + reach].clone()
        return joined

    def commit(self) -> None:
        """Mark the blocks that have just been written as cached."""
        self._cache.blocks += len(self._pages)
        self._cache.tails |= self._tails
