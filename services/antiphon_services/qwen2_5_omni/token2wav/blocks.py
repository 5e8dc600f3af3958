"""Determines the blocks in a call of the flow, and the blocks that each row attends to.

Frames are processed in blocks. A row attends to its own block and, in a few layers, to the previous
or the next block as well. The blocks of all utterances in a call form one batch [blocks, frames,
width], in which each utterance's last block is padded. A row never attends to the keys of more than
two blocks, no matter how long the speech is.

If an utterance is computed in pieces, each piece continues after a block that is already final. In
layers that attend to the previous block, later blocks need the final block's keys and values at
each evaluation of the flow. These are stored in its `FlowMemory`, so that a piece gives the same
result as computing the whole utterance so far.

The two halves of a guided batch, with and without the conditions, are concatenated.
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
    """The keys and values of an utterance's last final block.

    They are float32 with the shape [evaluations, layers that attend to the previous block, 2,
    HALVES, frames, heads, head_dim], which takes 28 MB with the released model's sizes.
    """

    seen: Tensor


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """The blocks from `first` to `stop` of an utterance. The last block has `last_frames` frames.

    `memory` contains the keys and values of the block before `first`. During the call, they are
    replaced by those of the block before `kept`. `kept` is None if no more blocks follow.
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
    """The blocks that rows attend to in a layer, in addition to their own block.

    Rows attend to the previous block if the layer is number `looking` of the layers that do so, and
    to the next block if `ahead` is true.
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
        """Each row's position in its utterance, int64 [blocks, frames]."""
        # Create masks on the host, so that checking whether a mask is full doesn't wait for the
        # device.
        self.own = np.ones((self.count, frames), np.bool_)
        behind, ahead = list(range(-1, self.count - 1)), list(range(1, self.count + 1))
        self.has_behind = np.ones(self.count, np.bool_)
        self.has_ahead = np.ones(self.count, np.bool_)
        # The memories, each with the block that follows it and the block that is written to it.
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
        """Return the keys and values that the rows attend to, and a mask if some of these are
        invalid.

        `own` [HALVES * blocks, 2, frames, heads, head_dim] contains the layer's keys and values.
        The mask is additive and has the shape [HALVES * blocks, 1, 1, keys].
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
        """Update the memories and return the keys and values of the block before each block."""
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
            # If another block follows a block, it is full.
            parts.insert(0, self.has_behind[:, None].repeat(self._frames, 1))
        if ahead:
            following = np.roll(self.own, -1, 0)
            parts.append(following & self.has_ahead[:, None])
        mask = np.concatenate(parts, 1)
        if mask.all():
            return None
        hidden = on_device(np.tile(~mask, (HALVES, 1))[:, None, None], self._device)
        return additive_mask(hidden, dtype)
