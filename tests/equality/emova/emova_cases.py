"""What EMOVA's own code was asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon_services.emova.unit_decoder_sizes import UNIT_ENTRIES
from antiphon_testkit.emova.tiny_speech_tokenizer import STYLES

SEED = 0
SAMPLE_STEP = 7
"""Of a waveform, every seventh sample is recorded."""


@dataclass(frozen=True, slots=True)
class UnitCase:
    """So many units spoken in a style, with noise of a key."""

    name: str
    count: int
    style: str
    key: int

    @property
    def units(self) -> npt.NDArray[np.uint16]:
        """uint16 [count]."""
        drawn = np.random.default_rng(self.count).integers(0, UNIT_ENTRIES, self.count)
        return drawn.astype(np.uint16)


UNIT_CASES = (
    UnitCase("one", 1, STYLES[1], 3),
    UnitCase("two", 2, STYLES[0], 5),
    UnitCase("short", 9, STYLES[4], (1 << 100) + 9),
    UnitCase("other-style", 9, STYLES[2], (1 << 100) + 9),
    UnitCase("other-key", 9, STYLES[4], 11),
    UnitCase("windows", 150, STYLES[1], 13),
)
