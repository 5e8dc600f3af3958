"""Resampling of recordings as the models' own packages do it.

They call `librosa.resample`: soxr at high quality, then zeros (or a cut) at the end until there are
`ceil(n * (to / from))` samples, in floating point. soxr alone rounds, so a third to a half of all
lengths lack one sample. A codec or a mel front end can make another frame of it.
"""

from __future__ import annotations

import math

import numpy as np
import soxr

from antiphon.values.chunk import Tensor


def resampled_length(samples: int, from_hz: int, to_hz: int) -> int:
    """How many samples a recording has at another rate.

    The quotient is rounded as in librosa: one second of 44.1 kHz has 24001 samples at 24 kHz.
    """
    return math.ceil(samples * (float(to_hz) / from_hz))


class RecordingResampler:
    """Mono float32 samples of one recording at another rate, as they come.

    The pieces together equal `librosa.resample` of the whole. Equal rates pass through.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._from_hz, self._to_hz = from_hz, to_hz
        self._stream: soxr.ResampleStream | None = None
        if from_hz != to_hz:
            self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")
        self._taken = self._given = 0

    def add(self, samples: Tensor, *, last: bool) -> Tensor:
        """What the next samples float32 [n] complete; after the `last` ones, all that is left."""
        if self._stream is None:
            return samples
        made: Tensor = self._stream.resample_chunk(samples, last=last)
        self._taken += len(samples)
        if last:
            left = resampled_length(self._taken, self._from_hz, self._to_hz) - self._given
            made = np.pad(made[:left], (0, max(0, left - len(made))))
        self._given += len(made)
        return made
