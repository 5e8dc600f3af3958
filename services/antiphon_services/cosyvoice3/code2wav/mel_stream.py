"""The mel frames of an utterance while its codes come, block by block.

A block is complete when its codes have come and the few codes after them that the flow looks ahead
to. The frames of complete blocks are those of one pass over the whole utterance.

As long as a stream gets pages for all of its blocks, each block is computed once, as soon as it is
complete, and the prompt's blocks before any code has come. A stream without a page for some block
computes that block and all later ones again with each hop. So its hops grow, as the vendor's do: it
waits for 1, then 2, and from then on 4 blocks.
"""

from __future__ import annotations

from torch import Tensor

from antiphon.pipelines.cosyvoice3 import FRAMES_PER_CODE
from antiphon_services.cosyvoice3.code2wav.flow import ClonedVoice, MelFlow
from antiphon_services.flow.block_cache import BlockCache, BlockCausalRows, BlockPages
from antiphon_services.flow.work import Work

MOST_BLOCKS = 4
"""Of one hop of a stream whose blocks are kept, and that one which computes blocks again waits
for."""


class MelStream:
    """One utterance with a voice. `close` gives its pages back."""

    def __init__(self, flow: MelFlow, voice: ClonedVoice, pages: BlockPages) -> None:
        self._flow, self._voice = flow, voice
        self._cache = BlockCache(pages)
        self._block_codes = flow.block.frames // FRAMES_PER_CODE
        self._prompt = len(voice.codes)
        self._blocks = 0
        self._hop = 1
        self.done = False

    def ready(self, count: int, *, finished: bool) -> bool:
        """Whether frames can be computed of the first `count` codes, which may be all."""
        return not self.done and (finished or self._next_block(count) is not None)

    def advance(self, codes: Tensor, *, finished: bool) -> Work[Tensor]:
        """The next frames [n, bins] of the utterance, whose codes so far are int64 [count].

        It must be `ready`. It is `done` with the last frames of codes that are `finished`.
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
        """Give the pages back."""
        self._cache.close()

    def _next_block(self, count: int) -> int | None:
        """The block before which the next hop ends if more codes follow; None until it can
        begin."""
        complete = (self._prompt + count - self._flow.look_ahead) // self._block_codes
        if self._keeps:
            return min(complete, self._blocks + MOST_BLOCKS) if complete > self._blocks else None
        speaks_from = self._prompt // self._block_codes
        waited = complete - max(self._blocks, speaks_from)
        return complete if waited >= self._hop else None

    @property
    def _keeps(self) -> bool:
        """Whether all blocks are kept so far, and the next one would be."""
        return self._cache.blocks == self._blocks and self._cache.pages.free > 0

    def _goes_on(self, block: int, end: int) -> bool:
        """Whether codes that are complete are still computed hop by hop: the first sound leaves
        earlier, and nothing is computed again."""
        return self._keeps and end > (block + 1) * self._flow.block.frames
