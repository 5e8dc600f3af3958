"""Compute the mel frames of an utterance block by block, while its codes arrive.

A block is complete when its codes and the flow's look-ahead codes after them have arrived. The
frames of complete blocks equal those of one pass over the whole utterance.

While a stream gets pages for all of its blocks, it computes each block once, as soon as the block
is complete. It computes the blocks of the prompt before any code has arrived. A stream without
pages for a block computes that block and all later blocks again with each hop. Its hops therefore
grow, as in the vendor's code: it waits for 1, then 2, and from then on for 4 blocks.
"""

from __future__ import annotations

from torch import Tensor

from antiphon.pipelines.cosyvoice3 import FRAMES_PER_CODE
from antiphon_services.cosyvoice3.code2wav.flow import ClonedVoice, MelFlow
from antiphon_services.flow.block_cache import BlockCache, BlockCausalRows, BlockPages
from antiphon_services.flow.work import Work

MOST_BLOCKS = 4
"""The maximum of blocks in one hop. A stream that computes blocks again waits for this many."""


class MelStream:
    """The mel frames of one utterance with a voice. `close` frees its pages."""

    def __init__(self, flow: MelFlow, voice: ClonedVoice, pages: BlockPages) -> None:
        self._flow, self._voice = flow, voice
        self._cache = BlockCache(pages)
        self._block_codes = flow.block.frames // FRAMES_PER_CODE
        self._prompt = len(voice.codes)
        self._blocks = 0
        self._hop = 1
        self.done = False

    def ready(self, count: int, *, finished: bool) -> bool:
        """Return whether the first `count` codes, which are all codes if `finished`, allow a
        hop."""
        return not self.done and (finished or self._next_block(count) is not None)

    def advance(self, codes: Tensor, *, finished: bool) -> Work[Tensor]:
        """Compute the next frames [n, bins] of the utterance from its codes so far, int64 [count].

        The stream must be `ready`. It is `done` after the last frames of codes that are `finished`.
        """
        cache, frames = self._cache, self._flow.block.frames
        end = FRAMES_PER_CODE * (self._prompt + len(codes))
        block = self._next_block(len(codes))
        if block is None or (finished and not self._goes_on(block, end)):
            block, last = None, end
        else:
            last = block * frames
        rows = BlockCausalRows(cache, last, keep=0 if block is None else block - cache.blocks)
        made = yield from self._flow.run_rows(self._voice, codes, rows)
        rows.commit()
        known = max(self._blocks * frames, FRAMES_PER_CODE * self._prompt) - rows.first
        if block is None:
            self.done = True
        else:
            self._blocks = block
            kept = cache.blocks == block
            self._hop = 1 if kept else min(2 * self._hop, MOST_BLOCKS)
        return made[known:]

    def close(self) -> None:
        """Free the pages."""
        self._cache.close()

    def _next_block(self, count: int) -> int | None:
        """Return the block at which the next hop ends if more codes follow, or None if it cannot
        start."""
        complete = (self._prompt + count - self._flow.look_ahead) // self._block_codes
        if self._keeps:
            return min(complete, self._blocks + MOST_BLOCKS) if complete > self._blocks else None
        speaks_from = self._prompt // self._block_codes
        waited = complete - max(self._blocks, speaks_from)
        return complete if waited >= self._hop else None

    @property
    def _keeps(self) -> bool:
        """Whether all blocks are cached so far, and there is a page for the next block."""
        return self._cache.blocks == self._blocks and self._cache.pages.free > 0

    def _goes_on(self, block: int, end: int) -> bool:
        """Return whether the rest of complete codes is still computed hop by hop.

        The first audio then leaves earlier, and no block is computed again.
        """
        return self._keeps and end > (block + 1) * self._flow.block.frames
