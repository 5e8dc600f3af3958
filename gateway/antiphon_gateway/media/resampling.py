"""Resamples recordings in the same way as the reference implementations of the models.

These call `librosa.resample`, which uses soxr at high quality. It then pads or cuts the end, so
that there are `ceil(n * (to / from))` samples, computed in floating point. soxr alone rounds the
number of samples, so a third to a half of all lengths would be one sample short. This could change
the number of frames of a codec or a mel front end.
"""

from __future__ import annotations

import math

import numpy as np
import soxr

from antiphon.values.chunk import Tensor


def resampled_length(samples: int, from_hz: int, to_hz: int) -> int:
    """Return the number of samples of a recording at a different rate.

    The quotient is rounded as in librosa. For example, one second at 44.1 kHz has 24001 samples at
    24 kHz.
    """
    return math.ceil(samples * (float(to_hz) / from_hz))


class RecordingResampler:
    """Converts the mono float32 samples of one recording to a different rate as they arrive.

    Together, the pieces are equal to `librosa.resample` of the whole recording. If the rates are
    equal, samples are passed through.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._from_hz, self._to_hz = from_hz, to_hz
        self._stream: soxr.ResampleStream | None = None
        if from_hz != to_hz:
            self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")
        self._taken = self._given = 0

    def add(self, samples: Tensor, *, last: bool) -> Tensor:
        """Return the output that is complete after the next samples (float32 [n]). After the `last`
        samples, this is all of the remaining output.
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
