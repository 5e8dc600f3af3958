"""Decoder calls with a small set of fixed shapes, so that they can be replayed as CUDA graphs.

The number of frames and the number of members in a call are padded to the next larger bucket.
Padding comes after a member's own frames and doesn't affect them. Members that consist only of
padding write to the last slot, which doesn't belong to any session. Calls that exceed all buckets
run without padding.
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

# The number of values at the beginning of a row, before the codes: slot, new frames and earlier
# frames.
_HEAD = 3


class Buckets:
    """A `Run` for these states. Their last slot must not belong to any session.

    There are buckets for calls of up to `steady` frames per member, which is the size of a steady
    chunk. The total number of frames in a bucket doesn't exceed that of a step at this pace. All
    buckets are captured during construction.
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
        # Capture the largest bucket first, so that the smaller ones fit into its memory for
        # intermediate values.
        for frames in reversed(self._frames):
            most = max(1, min(self._unowned, pace.step // frames))
            self._members[frames] = bucket_sizes(1, most)
            rows = on_device(self._padding(most, frames), decoder.device)
            self._runs[frames] = bucketing(partial(self._forward, frames), (rows,), 1)

    def __call__(self, codes: Array, members: Members) -> Tensor:
        """Return the samples for these frames, as a float tensor [n, samples or more] that doesn't
        share memory with the graphs.
        """
        count, given, _ = codes.shape
        frames = next((each for each in self._frames if each >= given), 0)
        sizes = self._members.get(frames, ())
        if not sizes or sizes[-1] < count:
            return self._decoder.run(self._states, codes, members)
        rows = self._padding(sizes[bisect_left(sizes, count)], frames)
        rows[:count, :_HEAD] = members.numbers
        rows[:count, _HEAD : _HEAD + given * self._decoder.groups] = codes.reshape(count, -1)
        (samples,) = self._runs[frames](on_device(rows, self._decoder.device))
        # The next replay overwrites the original.
        return samples[:count].clone()

    def _padding(self, members: int, frames: int) -> Array:
        """Return rows for padding, as int64 [members, 3 + frames * groups]."""
        rows = np.zeros((members, _HEAD + frames * self._decoder.groups), dtype=np.int64)
        rows[:, 0], rows[:, 1] = self._unowned, frames
        return rows

    def _forward(self, frames: int, rows: Tensor) -> tuple[Tensor]:
        codes = rows[:, _HEAD:].view(len(rows), frames, self._decoder.groups)
        return (self._decoder.forward(self._states, Batch(rows[:, :_HEAD]), codes),)
