"""Computes the mel features of a recording in progress. They are bit-identical to those of the
complete recording.

A frame depends on the `n_fft` samples around it, so it can be computed as soon as these samples
have arrived. It also depends on the loudest frame of the recording, which determines the floor. If
a louder frame arrives, the floor rises, which changes every window that contains a cell below the
new floor. At both ends of the recording, Hugging Face's extractor either mirrors the samples or
appends silence.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Float32 = npt.NDArray[np.float32]

RANGE = 8.0
"""The distance between the loudest cell and the floor, in powers of ten. The value is taken from
`WhisperFeatureExtractor`.
"""


class GrowingFeatures:
    """The windows of a recording, with `window_frames` frames each. The last window may be shorter
    or missing.

    If `silent_end` is true, the recording is followed by silence instead of its mirror image. This
    class is not thread-safe.
    """

    def __init__(self, extractor: Any, window_frames: int, *, silent_end: bool) -> None:
        self._hop: int = extractor.hop_length
        self._size: int = extractor.n_fft
        self._half: int = self._size // 2
        self._window_frames = window_frames
        self._silent_end = silent_end
        self._shape = torch.hann_window(self._size)
        self._filters = torch.from_numpy(extractor.mel_filters).to(torch.float32).T
        # The log mel features of all windows so far, before the floor is applied, and the lowest
        # cell of each window.
        self._windows: list[Tensor] = []
        self._lowest: list[float] = []
        self._loudest = -math.inf
        # The samples needed for the next window's first frame and everything after it. Frame 0 is
        # centered on the first sample.
        self._kept: Float32 = np.empty(0, np.float32)
        self._heard = 0

    @property
    def lengths(self) -> list[int]:
        """The number of frames in each window so far."""
        return [each.shape[1] for each in self._windows]

    @property
    def bins(self) -> int:
        """The number of mel bins in a frame."""
        return len(self._filters)

    @property
    def count(self) -> int:
        """The number of windows."""
        return len(self._windows)

    def samples_for(self, windows: int) -> int:
        """Return the number of samples needed for `windows` complete windows."""
        frames = windows * self._window_frames
        return (frames - 1) * self._hop + self._size - self._half

    def hear(self, samples: Float32) -> int:
        """Add samples. Returns the index of the first window that is new or has changed, or `count`
        if there is none.
        """
        self._keep(samples)
        told, before = len(self._windows), self._loudest
        while self._heard >= self.samples_for(len(self._windows) + 1):
            self._add(self._cut(self._window_frames))
        return self._first_other(told, before)

    def finish(self) -> int:
        """Finish the recording. Returns the index of the first window that is new or has changed,
        or `count` if there is none.
        """
        told, done, before = len(self._windows), sum(self.lengths), self._loudest
        if self._silent_end:
            # The loudest frame may be one that overlaps the silence.
            total, beyond = -(-self._heard // self._hop), -(-self._size // self._hop)
            end = (total + beyond) * self._hop + self._half
            self._keep(np.zeros(end - self._heard, np.float32))
        else:
            total, beyond = self._heard // self._hop, 0
            self._kept = np.concatenate((self._kept, self._kept[-self._half - 1 : -1][::-1]))
        left = total - done
        if left + beyond > 0:
            made = self._cut(left + beyond)
            self._loudest = max(self._loudest, float(made.max()))
            if left:
                self._add(made[:, :left])
        return self._first_other(told, before)

    def window(self, index: int) -> Float32:
        """Return the features [mel bins, frames] of a window, based on the loudest frame so far."""
        floored = torch.maximum(self._windows[index], torch.tensor(self._loudest) - RANGE)
        features: Float32 = ((floored + 4.0) / 4.0).numpy()
        return features

    def _keep(self, samples: Float32) -> None:
        begins = self._heard <= self._half
        self._heard += len(samples)
        self._kept = np.concatenate((self._kept, samples))
        if begins and self._heard > self._half:
            # Mirror the beginning of the recording.
            self._kept = np.concatenate((self._kept[self._half : 0 : -1], self._kept))

    def _cut(self, frames: int) -> Tensor:
        """Return the log mel features [mel bins, frames] of the next frames and drop samples that
        are no longer needed.
        """
        heard = torch.from_numpy(self._kept[: (frames - 1) * self._hop + self._size])
        self._kept = self._kept[frames * self._hop :]
        spectrum = torch.stft(
            heard, self._size, self._hop, window=self._shape, center=False, return_complex=True
        )
        power = (spectrum.abs() ** 2).contiguous()
        if alone := power.shape[1] == 1:
            # A product with a single column rounds differently than the same column in a larger
            # product.
            power = power.repeat(1, 2)
        log_mel = torch.clamp(self._filters @ power, min=1e-10).log10()
        return log_mel[:, :1] if alone else log_mel

    def _add(self, window: Tensor) -> None:
        self._windows.append(window)
        self._lowest.append(float(window.min()))
        self._loudest = max(self._loudest, float(window.max()))

    def _first_other(self, told: int, before: float) -> int:
        """Return the first of the reported windows that a higher floor has changed. If there is
        none, return the first new window.

        `before` was the loudest cell when these windows were reported.
        """
        floor = float(torch.tensor(self._loudest) - RANGE)
        if self._loudest > before:
            for index, lowest in enumerate(self._lowest[:told]):
                if lowest < floor:
                    return index
        return told
