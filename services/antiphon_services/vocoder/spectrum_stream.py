"""The short-time Fourier transform and its inverse for a single stream, computed piece by piece.

Concatenating the results of all pieces gives the same result as calling `torch.stft` (centered,
with reflection) or `torch.istft` (centered) for the whole stream. The window has the same length as
the transform.
"""

from __future__ import annotations

import torch
from torch import Tensor

Window = Tensor
"""A window, as a float tensor [n_fft]."""


class StreamingStft:
    """Converts a stream of samples to spectra. Half a window must be a multiple of `hop`."""

    def __init__(self, window: Window, hop: int) -> None:
        self._window, self._hop = window, hop
        self._half = len(window) // 2
        self._kept: Tensor | None = None

    def advance(self, samples: Tensor, *, finished: bool) -> Tensor:
        """Return the columns that can be computed after adding `samples` [n], as complex [bins,
        columns].

        The first piece must be longer than half a window. So must the last piece together with the
        samples that have been kept.
        """
        if self._kept is None:
            first = samples[1 : self._half + 1].flip(0)
            joined = torch.cat((first, samples))
        else:
            joined = torch.cat((self._kept, samples))
        if finished:
            joined = torch.cat((joined, joined[-self._half - 1 : -1].flip(0)))
        count = max(0, (len(joined) - len(self._window)) // self._hop + 1)
        self._kept = joined[count * self._hop :].clone()
        if not count:
            return torch.empty(self._half + 1, 0, dtype=torch.complex64, device=samples.device)
        columns = joined.unfold(0, len(self._window), self._hop)
        spectra: Tensor = torch.fft.rfft(columns * self._window).T
        return spectra


class StreamingIstft:
    """Converts a stream of spectra to samples. Windows are overlapped and added, and the sum is
    divided by the sum of their weights.
    """

    def __init__(self, window: Window, hop: int) -> None:
        self._window, self._hop = window, hop
        self._skipped = len(window) // 2
        overlap = len(window) - hop
        self._sums = window.new_zeros(2, overlap)

    def advance(self, spectra: Tensor, *, finished: bool) -> Tensor:
        """Return the samples (float [n]) that no later spectrum can change, after adding `spectra`
        (complex [bins, columns]).

        A stream with c columns has hop * (c - 1) samples.
        """
        size, count = len(self._window), spectra.shape[1]
        frames = torch.fft.irfft(spectra.T, n=size) * self._window
        weights = (self._window**2).expand(count, size)
        both = torch.stack((frames, weights)).transpose(1, 2)
        length = self._hop * (count - 1) + size
        sums = torch.nn.functional.fold(both, (1, length), (1, size), stride=(1, self._hop))
        sums = sums[:, 0, 0]
        sums[:, : self._sums.shape[1]] += self._sums
        whole = self._hop * count
        self._sums = sums[:, whole:].clone()
        # The stream is padded by half a window before its first sample and after its last one.
        stop = whole + self._sums.shape[1] - len(self._window) // 2 if finished else whole
        skipped = min(self._skipped, stop)
        self._skipped -= skipped
        added, weight = sums[:, skipped:stop]
        samples: Tensor = added / weight
        return samples
