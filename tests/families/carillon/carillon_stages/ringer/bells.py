"""How strokes sound: a tone that glides to the pitch of the next stroke. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from carillon import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

Samples = npt.NDArray[np.float32]


def pitch_hz(stroke: npt.NDArray[np.uint16]) -> float:
    """Of one stroke [bell, mood]."""
    return 100.0 + 5.0 * float(stroke[0]) + 50.0 * float(stroke[1])


class Tower:
    """The phase of the tone, which goes on from stroke to stroke."""

    def __init__(self) -> None:
        self._phase = 0.0

    def ring(self, stroke: npt.NDArray[np.uint16], following: npt.NDArray[np.uint16]) -> Samples:
        """The samples of one stroke, which depend on the next one."""
        way = np.arange(1, SAMPLES_PER_FRAME + 1) / SAMPLES_PER_FRAME
        pitch = pitch_hz(stroke) * (1 - way) + pitch_hz(following) * way
        phases = self._phase + 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE_HZ
        self._phase = float(phases[-1])
        return np.sin(phases).astype(np.float32)
