"""Removes silence from the end of speech.

This module mirrors `silence_holder` in the talker of Ming-flash-omni. A window of 0.1 seconds is
silent if its mean magnitude is at most 1e-3. Silent windows are held back until a window is loud or
the speech ends. The vendor's code drops the last part if it is shorter than a window. Here, this
part is treated as a separate window.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antiphon.pipelines.ming_tts import SAMPLE_RATE_HZ

WINDOW = SAMPLE_RATE_HZ // 10
SILENT = 1e-3

Floats = npt.NDArray[np.float32]


class TailSilence:
    """Removes silence from one stream but keeps `tail` samples of silence at its end."""

    def __init__(self, tail: int) -> None:
        self._tail = tail
        # The samples after the last loud window. The first `_silent` windows of them are known to
        # be silent.
        self._held: list[Floats] = []
        self._silent = 0

    def advance(self, samples: Floats, *, finished: bool) -> Floats:
        """Return the samples that can be sent now.

        These are all samples up to the last loud window and, at the end, the tail.
        """
        held = np.concatenate((*self._held, samples))
        # An incomplete window only counts as a window at the end.
        starts = range(self._silent * WINDOW, len(held), WINDOW)
        ends = [start + WINDOW for start in starts if finished or start + WINDOW <= len(held)]
        loud = [end for end in ends if np.abs(held[end - WINDOW : end]).mean() > SILENT]
        stop = min(loud[-1], len(held)) if loud else 0
        if finished:
            return held[: stop + self._tail]
        self._held, self._silent = [held[stop:]], (len(held) - stop) // WINDOW
        return held[:stop]
