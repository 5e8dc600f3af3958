"""Decoder calls in a few fixed shapes, to be replayed as CUDA graphs.

A call is padded to the next sizes in frames and members. Frames after a member's own do not affect
it, as in any batch. Padding members write to the last slot, which no session owns. Larger calls run
without padding.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial

import numpy as np
from torch import Tensor

from antiphon.transport.device_edge import on_device
from antiphon.values.chunk import Tensor as Array
from antiphon_services.lm.graphs import Bucketing, RowFunction, bucket_sizes
from antiphon_services.vocoder.batch import Batch, Members, StreamStates
from antiphon_services.vocoder.pace import DecodePace
from antiphon_services.vocoder.stream import StreamDecoder

# Slot, new frames, seen frames: the values before the codes in a row of numbers.
_HEAD = 3


class Buckets:
    """A `Run` for these states, whose last slot no session owns.

    There are buckets up to `steady` frames, those of a steady chunk, and up to as many frames in
    total as a step of this pace. All are captured on construction.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        states: StreamStates,
        bucketing: Bucketing,
        pace: DecodePace,
        steady: int,
    ) -> None:
        self._decoder, self._states = decoder, states
        self._unowned = len(states.frames) - 1
        states.reset(self._unowned)
        self._frames = bucket_sizes(1, steady)
        self._members: dict[int, tuple[int, ...]] = {}
        self._runs: dict[int, RowFunction] = {}
        # Largest first: the others' intermediates fit into its memory.
        for frames in reversed(self._frames):
            most = max(1, min(self._unowned, pace.step // frames))
            self._members[frames] = bucket_sizes(1, most)
            rows = on_device(self._padding(most, frames), decoder.device)
            self._runs[frames] = bucketing(partial(self._forward, frames), (rows,), 1)

    def __call__(self, codes: Array, members: Members) -> Tensor:
        """Return the samples of these frames in separate memory: float [n, samples or more]."""
        count, given, _ = codes.shape
        frames = next((each for each in self._frames if each >= given), 0)
        sizes = self._members.get(frames, ())
        if not sizes or sizes[-1] < count:
            return self._decoder.run(self._states, codes, members)
        rows = self._padding(sizes[bisect_left(sizes, count)], frames)
        rows[:count, :_HEAD] = members.numbers
        rows[:count, _HEAD : _HEAD + given * self._decoder.groups] = codes.reshape(count, -1)
        (samples,) = self._runs[frames](on_device(rows, self._decoder.device))
        # The next replay overwrites these.
        return samples[:count].clone()

    def _padding(self, members: int, frames: int) -> Array:
        """Return padding rows: int64 [members, 3 + frames * groups]."""
        rows = np.zeros((members, _HEAD + frames * self._decoder.groups), dtype=np.int64)
        rows[:, 0], rows[:, 1] = self._unowned, frames
        return rows

    def _forward(self, frames: int, rows: Tensor) -> tuple[Tensor]:
        codes = rows[:, _HEAD:].view(len(rows), frames, self._decoder.groups)
        return (self._decoder.forward(self._states, Batch(rows[:, :_HEAD]), codes),)
