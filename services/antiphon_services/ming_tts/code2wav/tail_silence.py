"""Cuts the silence at the end of speech, which is known to be the end only when speech is over.

Mirrors `silence_holder` of Ming-flash-omni's talker: windows of 0.1 s are silent up to a mean
magnitude of 1e-3, and silent ones are held until a loud one comes. Its last part, shorter than a
window, is dropped there; here it is judged by itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antiphon.pipelines.ming_tts import SAMPLE_RATE_HZ

WINDOW = SAMPLE_RATE_HZ // 10
SILENT = 1e-3

Floats = npt.NDArray[np.float32]


class TailSilence:
    """Of one stream, at whose end `tail` samples of silence are left."""

    def __init__(self, tail: int) -> None:
        self._tail = tail
        # Samples after the last loud window, of which so many windows are known to be silent.
        self._held: list[Floats] = []
        self._silent = 0

    def advance(self, samples: Floats, *, finished: bool) -> Floats:
        """The samples that leave now: all up to the last loud window, and the tail at the end."""
        held = np.concatenate((*self._held, samples))
        # A part of a window is one at the end.
        starts = range(self._silent * WINDOW, len(held), WINDOW)
        ends = [start + WINDOW for start in starts if finished or start + WINDOW <= len(held)]
        loud = [end for end in ends if np.abs(held[end - WINDOW : end]).mean() > SILENT]
        stop = min(loud[-1], len(held)) if loud else 0
        if finished:
            return held[: stop + self._tail]
        self._held, self._silent = [held[stop:]], (len(held) - stop) // WINDOW
        return held[:stop]
