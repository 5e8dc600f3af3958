"""The blocks in a call of the flow, and the blocks to which each row attends.

Frames are processed in blocks. A row attends to its own block. In a few layers, it also attends to
the previous or the next block. The blocks of all utterances in a call form one batch [blocks,
frames, width], in which the last block of each utterance is padded. A row attends to the keys of at
most two blocks, regardless of the length of the speech.

If an utterance is computed in pieces, it continues after a block that is final. In layers that look
behind, later blocks need the keys and values of this block at each evaluation of the flow. They are
stored in its `FlowMemory`. A piece then has the same result as a computation of the whole utterance
so far.

The two halves of a guided batch, one with and one without the conditions, are concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from antiphon.transport.device_edge import on_device
from antiphon_services.lm.attention_calls import additive_mask

HALVES = 2


@dataclass(frozen=True, slots=True)
class FlowMemory:
    """The keys and values of the last final block of an utterance.

    They are float32 with the shape [evaluations, layers that look behind, 2, HALVES, frames, heads,
    head_dim], which is 28 MB at the released sizes.
    """

    seen: Tensor


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """The blocks from `first` to `stop` of one utterance. The last block has `last_frames` frames.

    `memory` contains the keys and values of the block before `first`. They are replaced by the keys
    and values of the block before `kept`. If no more blocks follow, `kept` is None.
    """

    first: int
    stop: int
    last_frames: int
    memory: FlowMemory | None = None
    kept: int | None = None

    @property
    def count(self) -> int:
        """The number of blocks."""
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class BlockWindow:
    """The blocks to which rows attend in a layer in addition to their own block.

    This is the previous block if the layer is number `looking` of the layers that look behind, and
    the next block if `ahead` is true.
    """

    looking: int | None
    ahead: bool


class BlockPlan:
    """The attention of one call. It is the same for all evaluations and layers."""

    def __init__(self, spans: Sequence[BlockSpan], frames: int, device: torch.device) -> None:
        self._frames, self._device = frames, device
        self.count = sum(each.count for each in spans)
        numbers = [number for each in spans for number in range(each.first, each.stop)]
        starts = np.array(numbers, np.int64)[:, None] * frames
        self.positions = on_device(starts + np.arange(frames), device)
        """The position of each row in its utterance, int64 [blocks, frames]."""
        # Masks are created on the host. The check whether a mask is full then does not wait for the
        # device.
        self.own = np.ones((self.count, frames), np.bool_)
        behind, ahead = list(range(-1, self.count - 1)), list(range(1, self.count + 1))
        self.has_behind = np.ones(self.count, np.bool_)
        self.has_ahead = np.ones(self.count, np.bool_)
        # The memories, each with the block that follows it or the block that it receives.
        self.recalled: list[tuple[FlowMemory, int]] = []
        self.kept: list[tuple[FlowMemory, int]] = []
        end = 0
        for span in spans:
            begin, end = end, end + span.count
            self.own[end - 1, span.last_frames :] = False
            self.has_ahead[end - 1] = False
            ahead[end - 1] = end - 1
            if span.memory is not None and span.first:
                behind[begin] = -1 - len(self.recalled)
                self.recalled.append((span.memory, begin))
            else:
                self.has_behind[begin] = False
                behind[begin] = begin
            if span.memory is not None and span.kept is not None:
                self.kept.append((span.memory, begin + span.kept - 1 - span.first))
        self._behind = self._both_halves(behind)
        self._ahead = self._both_halves(ahead)
        self._masks: dict[tuple[bool, bool], Tensor | None] = {}

    def _both_halves(self, blocks: Sequence[int]) -> Tensor:
        """Return the indices of the blocks in the batch of both halves, followed by the indices of
        the recalled blocks.
        """
        count, recalled = self.count, len(self.recalled)
        return on_device(
            [
                half * count + block if block >= 0 else HALVES * count + half * recalled - 1 - block
                for half in range(HALVES)
                for block in blocks
            ],
            self._device,
        )

    def seen(
        self, own: Tensor, evaluation: int, window: BlockWindow
    ) -> tuple[Tensor, Tensor | None]:
        """Return the keys and values to which rows attend, and a mask if some of them are invalid.

        `own` [HALVES * blocks, 2, frames, heads, head_dim] contains the keys and values of the
        layer. The mask is additive, with the shape [HALVES * blocks, 1, 1, keys].
        """
        looking, ahead = window.looking, window.ahead
        looks = looking is not None, ahead
        if looks not in self._masks:
            self._masks[looks] = self._make_mask(*looks, own.dtype)
        parts = [own]
        if looking is not None:
            parts.insert(0, self._behind_of(own, evaluation, looking))
        if ahead:
            parts.append(own[self._ahead])
        return (torch.cat(parts, dim=2) if len(parts) > 1 else own), self._masks[looks]

    def _behind_of(self, own: Tensor, evaluation: int, looking: int) -> Tensor:
        """Return the keys and values before each block, and update the memories."""
        known = own
        if self.recalled:
            recalled = torch.stack(
                [memory.seen[evaluation, looking] for memory, _ in self.recalled], 1
            )
            # Reshape [2, memories, HALVES, ...] to [HALVES * memories, 2, ...].
            known = torch.cat((own, recalled.transpose(0, 2).flatten(0, 1)))
        behind = known[self._behind]
        for memory, block in self.kept:
            kept = own[block :: self.count]
            memory.seen[evaluation, looking] = kept.transpose(0, 1)
        return behind

    def _make_mask(self, behind: bool, ahead: bool, dtype: torch.dtype) -> Tensor | None:
        parts = [self.own]
        if behind:
            # A block that is followed by another block is full.
            parts.insert(0, self.has_behind[:, None].repeat(self._frames, 1))
        if ahead:
            following = np.roll(self.own, -1, 0)
            parts.append(following & self.has_ahead[:, None])
        mask = np.concatenate(parts, 1)
        if mask.all():
            return None
        hidden = on_device(np.tile(~mask, (HALVES, 1))[:, None, None], self._device)
        return additive_mask(hidden, dtype)
