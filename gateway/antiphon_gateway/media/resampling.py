"""Resamples recordings in the same way as the models' reference implementations.

These call `librosa.resample`, which uses soxr at high quality. librosa then pads or cuts the end to
get `ceil(n * (to / from))` samples, computed in floating point. soxr itself rounds the number of
samples, so for a third to a half of all lengths, the result would be one sample short. This could
change the number of frames of a codec or a mel front end.
"""

from __future__ import annotations

import math

import numpy as np
import soxr

from antiphon.values.chunk import Tensor


def resampled_length(samples: int, from_hz: int, to_hz: int) -> int:
    """Return how many samples a recording has at a different sample rate.

    The quotient is rounded in the same way as in librosa. For example, one second at 44.1 kHz has
    24001 samples at 24 kHz.
    """
    return math.ceil(samples * (float(to_hz) / from_hz))


class RecordingResampler:
    """Converts the mono float32 samples of one recording to a different sample rate as they arrive.

    Joining the pieces gives the same result as calling `librosa.resample` on the whole recording.
    If both rates are the same, samples are passed through.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._from_hz, self._to_hz = from_hz, to_hz
        self._stream: soxr.ResampleStream | None = None
        if from_hz != to_hz:
            self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")
        self._taken = self._given = 0

    def add(self, samples: Tensor, *, last: bool) -> Tensor:
        """Return the output that is complete after these samples (float32 [n]). If they are the
        `last` samples, all remaining output is returned.
        """
        if self._stream is None:
            return samples
        made: Tensor = self._stream.resample_chunk(samples, last=last)
        self._taken += len(samples)
        if last:
            left = resampled_length(self._taken, self._from_hz, self._to_hz) - self._given
            made = np.pad(made[:left], (0, max(0, left - len(made))))
        self._given += len(made)
        return made
