"""Stores the state of many sessions in slots. Also represents the batch of new frames that a call
processes.

A call reads the state of its slots at the beginning and only writes the new state at its end
(`Batch.commit`). If it fails before that, nothing has changed, so it can be repeated. Rows of
different sessions never mix.

Two measures ensure that all rows of a batch have the same shape:

- Shorter rows are padded on the right. All layers are causal, so padding doesn't affect real rows.
  The new state is taken from the end of each session's own rows, and any output after this end is
  dropped.
- A transposed convolution with overlapping inputs normally doesn't produce any output for the first
  input. Here it produces rows anyway, so that every frame results in the same number of rows. At a
  `Level`, the first `start` rows of the stream are therefore placeholders. They are set to zero
  wherever a later row could read them, like padding on the left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from antiphon.values.chunk import Tensor as Array

Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Level:
    """A layer's position in the upsampling. It consists of the number of rows per frame, and the
    number of placeholder rows at the start of the stream.
    """

    rate: int = 1
    start: int = 0

    def upsampled(self, stride: int, *, overlaps: bool) -> Level:
        """Return the level after a transposed convolution."""
        return Level(self.rate * stride, (self.start + overlaps) * stride)

    def rows(self, frames: int) -> int:
        """Return the number of real rows for a stream's first `frames` frames."""
        return max(0, frames * self.rate - self.start)


class StreamStates:
    """The state that sessions have between calls. It is one tensor with one slot per session.

    `shapes` contains, for each layer, the shape [rows, channels] of each of a session's state
    tensors. A slot must be reset before its first use. On a CPU, its memory is committed at that
    point.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[Shape]],
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        total = numbers_of(shapes)
        self.memory = torch.empty((slots, total), dtype=dtype, device=device)
        self.frames = np.zeros(slots, dtype=np.int64)
        self.layers: list[list[Tensor]] = []
        place = 0
        for layer in shapes:
            views = []
            for rows, channels in layer:
                part = self.memory[:, place : place + rows * channels]
                views.append(part.view(slots, rows, channels))
                place += rows * channels
            self.layers.append(views)

    def reset(self, slot: int) -> None:
        """Reset a slot to the start of a stream."""
        self.memory[slot].zero_()
        self.frames[slot] = 0


def numbers_of(shapes: Sequence[Sequence[Shape]]) -> int:
    """Return the number of values in a session's state."""
    return sum(math.prod(shape) for layer in shapes for shape in layer)


class Members:
    """The sessions that take part in a call. Its int64 arrays are on the host and have one entry
    per session.
    """

    def __init__(self, states: StreamStates, slots: Sequence[int], lengths: Sequence[int]) -> None:
        self.slots = np.asarray(slots, dtype=np.int64)
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.seen = states.frames[self.slots]

    @property
    def numbers(self) -> Array:
        """The slot, the number of new frames and the number of earlier frames of each session, as
        int64 [n, 3].
        """
        return np.stack((self.slots, self.lengths, self.seen), axis=1)


class Batch:
    """New frames for several slots, which are processed in a single call.

    A slot must not occur more than once. `numbers` contains `Members.numbers` on the device. If
    `known` is given, operations that these members don't need are skipped. Otherwise the operations
    are the same for all values of `numbers`, which is required for a CUDA graph.
    """

    def __init__(self, numbers: Tensor, known: Members | None = None) -> None:
        self._slots, self._lengths, self.seen = numbers.unbind(1)
        # The number of new frames, or 0 if it isn't the same for all members.
        self._common = 0
        self._youngest, self._alone = 0, -1
        if known is not None:
            self._youngest = int(known.seen.min())
            first = int(known.lengths[0])
            self._common = first if (known.lengths == first).all() else 0
            self._alone = int(known.slots[0]) if len(known.slots) == 1 else -1
        self.size = len(numbers)
        self._kept: list[tuple[Tensor, Tensor]] = []

    def extended(self, past: Tensor, rows: int) -> Tensor:
        """Return a buffer [size, past rows + rows, channels] that begins with the state."""
        _, before, channels = past.shape
        joined = past.new_empty((self.size, before + rows, channels))
        if self._alone >= 0:
            joined[0, :before] = past[self._alone]
        else:
            joined[:, :before] = past.index_select(0, self._slots)
        return joined

    def zero_start(self, rows: Tensor, level: Level) -> None:
        """Set the placeholder rows among the new rows [size, frames * rate, channels] to zero."""
        most = min(level.start - self._youngest * level.rate, rows.shape[1])
        if most <= 0:
            return
        unreal = level.start - self.seen * level.rate
        places = torch.arange(most, device=rows.device)
        rows[:, :most].masked_fill_((places < unreal[:, None])[..., None], 0)

    def keep_last(self, past: Tensor, joined: Tensor, level: Level) -> None:
        """Record each session's last rows in `joined`, which is an extended buffer, as its new
        state.
        """
        length, before = joined.shape[1], past.shape[1]
        if self._common:
            end = before + self._common * level.rate
            kept = joined[:, end - before : end]
            # Copy the rows, because a view would keep the whole buffer alive until the end of the
            # call.
            kept = kept if 2 * before > length else kept.clone()
        else:
            firsts = self._lengths * level.rate
            firsts += torch.arange(self.size, device=joined.device) * length
            places = firsts[:, None] + torch.arange(before, device=joined.device)
            kept = (
                joined.flatten(0, 1)
                .index_select(0, places.flatten())
                .view(self.size, before, joined.shape[2])
            )
        self._kept.append((past, kept))

    def commit(self) -> None:
        """Write the recorded states to their slots."""
        for past, kept in self._kept:
            if self._alone >= 0:
                past[self._alone] = kept[0]
            else:
                past.index_copy_(0, self._slots, kept)
        self._kept.clear()
