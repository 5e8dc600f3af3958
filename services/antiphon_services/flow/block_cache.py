"""Block-causal attention over a growing sequence, with keys and values cached in pages.

A row sees its own block and all blocks before it, so a computed block never changes. A sequence
that grows by blocks can be computed block by block if what later blocks read is cached, for each
evaluation of the flow and each layer. One page holds one block. A stage has a fixed number of pages
for all sequences. A sequence caches as many of its first blocks as it has pages, and computes the
others again, with the same result.

Keys and values are [sequences, 2, rows, heads, head_dim]. The sequences are the halves of a guided
batch.
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
    """Sizes of a block's cache: `frames` rows of `sequences` for each evaluation and layer."""

    evaluations: int
    layers: int
    sequences: int
    frames: int
    heads: int
    head_dim: int

    @property
    def page(self) -> tuple[int, ...]:
        """Shape of a page: [evaluations, layers, sequences, 2, frames, heads, head_dim]."""
        rows = (self.frames, self.heads, self.head_dim)
        return (self.evaluations, self.layers, self.sequences, 2, *rows)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in float32."""
        return math.prod(self.page) * torch.float32.itemsize


class BlockPages:
    """The pages of a stage: as many as fit `cache_bytes`."""

    def __init__(self, shape: BlockShape, cache_bytes: int, device: torch.device) -> None:
        self.shape = shape
        self.count = cache_bytes // shape.page_bytes
        self.memory = torch.empty((self.count, *shape.page), device=device)
        self._free = list(range(self.count))

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def take(self, most: int) -> list[int]:
        """Take and return the numbers of at most `most` pages."""
        taken = self._free[:most]
        del self._free[: len(taken)]
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        """Free pages."""
        self._free += pages


class BlockCache:
    """The cache of one sequence's first `blocks` blocks."""

    def __init__(self, pages: BlockPages) -> None:
        self.pages = pages
        self.blocks = 0
        self._held: list[int] = []
        # By evaluation and convolution: its last inputs before the first row that is not cached.
        self.tails: dict[tuple[int, int], Tensor] = {}

    @property
    def kept(self) -> Sequence[int]:
        """The pages of the cached blocks."""
        return self._held[: self.blocks]

    def extend(self, most: int) -> Sequence[int]:
        """Return pages for at most `most` blocks after the cached ones."""
        missing = self.blocks + most - len(self._held)
        if missing > 0:
            self._held += self.pages.take(missing)
        return self._held[self.blocks : self.blocks + most]

    def close(self) -> None:
        """Free the pages."""
        self.pages.give_back(self._held)
        self._held, self.blocks, self.tails = [], 0, {}


class BlockCausalRows(AllRows):
    """Rows after the blocks in `cache`, up to row `stop` of the sequence.

    The first `keep` blocks of them are written to the cache, as far as pages are available. They
    count as cached after `commit`.
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
        """Return bool [rows, keys], True where a row sees a key; None if all rows see
        everything."""
        if self.stop - self.first <= self._frames:
            return None
        blocks = torch.arange(self.stop, device=device) // self._frames
        return blocks[self.first :, None] >= blocks

    def seen(self, own: Tensor, evaluation: int, window: int) -> tuple[Tensor, Tensor | None]:
        """Return the cached keys and values followed by the rows' own."""
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
        """Return the last inputs of the cached blocks, then `x`."""
        tail = self._cache.tails.get((evaluation, convolution))
        joined = pad(x, (reach, 0)) if tail is None else torch.cat((tail, x), dim=2)
        if self._pages:
            kept = len(self._pages) * self._frames
            self._tails[evaluation, convolution] = joined[:, :, kept : kept + reach].clone()
        return joined

    def commit(self) -> None:
        """Count the written blocks as cached."""
        self._cache.blocks += len(self._pages)
        self._cache.tails |= self._tails
