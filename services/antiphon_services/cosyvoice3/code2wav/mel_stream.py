"""Computes the mel frames of an utterance in blocks while its codes arrive.

A block is complete when its codes, and the codes that the flow needs as look-ahead, have arrived.
The frames of complete blocks are identical to the result of a single pass over the entire
utterance.

As long as the stream has pages for all of its blocks, it computes each block only once, as soon as
the block is complete. The blocks of the prompt are computed before any code arrives. If no page is
available for a block, that block and all later blocks are computed again with each hop. To limit
this cost, the stream then waits for 1 block, then for 2, and from then on for 4, as the vendor's
code does.
"""

from __future__ import annotations

from torch import Tensor

from antiphon.pipelines.cosyvoice3 import FRAMES_PER_CODE
from antiphon_services.cosyvoice3.code2wav.flow import ClonedVoice, MelFlow
from antiphon_services.flow.block_cache import BlockCache, BlockCausalRows, BlockPages
from antiphon_services.flow.work import Work

MOST_BLOCKS = 4
"""The maximum number of blocks in a hop.

A stream that has to recompute blocks waits for this many new blocks.
"""


class MelStream:
    """The mel frames of one utterance. Call `close` to release its pages."""

    def __init__(self, flow: MelFlow, voice: ClonedVoice, pages: BlockPages) -> None:
        self._flow, self._voice = flow, voice
        self._cache = BlockCache(pages)
        self._block_codes = flow.block.frames // FRAMES_PER_CODE
        self._prompt = len(voice.codes)
        self._blocks = 0
        self._hop = 1
        self.done = False

    def ready(self, count: int, *, finished: bool) -> bool:
        """Return whether the next hop can be computed from the first `count` codes.

        `finished` is true if the utterance has no further codes.
        """
        return not self.done and (finished or self._next_block(count) is not None)

    def advance(self, codes: Tensor, *, finished: bool) -> Work[Tensor]:
        """Compute the next frames, of shape [n, bins], from all codes received so far.

        `codes` is an int64 tensor of shape [count]. Only call this method if `ready` returns True.
        If `finished` is true, the stream is `done` after its last frames have been computed.
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
        """Release the pages of the stream."""
        self._cache.close()

    def _next_block(self, count: int) -> int | None:
        """Return the block at which the next hop ends if more codes follow.

        Returns None if there are not enough codes for a hop.
        """
        complete = (self._prompt + count - self._flow.look_ahead) // self._block_codes
        if self._keeps:
            return min(complete, self._blocks + MOST_BLOCKS) if complete > self._blocks else None
        speaks_from = self._prompt // self._block_codes
        waited = complete - max(self._blocks, speaks_from)
        return complete if waited >= self._hop else None

    @property
    def _keeps(self) -> bool:
        """Whether all blocks so far are cached and a page is available for the next one."""
        return self._cache.blocks == self._blocks and self._cache.pages.free > 0

    def _goes_on(self, block: int, end: int) -> bool:
        """Return whether the remaining codes should still be computed one hop at a time.

        This emits the first audio earlier, and no block has to be recomputed.
        """
        return self._keeps and end > (block + 1) * self._flow.block.frames
