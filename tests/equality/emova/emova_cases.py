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


@dataclass(frozen=True, slots=True)
class HeardCase:
    """A recording of so many samples at 16 kHz."""

    name: str
    count: int

    @property
    def samples(self) -> npt.NDArray[np.float32]:
        """float32 [count]: a gliding tone with steps of loudness, and some noise."""
        time = np.arange(self.count) / 16_000
        noise = np.random.default_rng(self.count).standard_normal(self.count)
        tone = np.sin(2 * np.pi * (180 * time + 60 * np.sin(5 * time)))
        loud = 0.1 + 0.4 * (np.floor(time * 6) % 3)
        return (loud * tone + 0.02 * noise).astype(np.float32)


HEARD_CASES = (
    HeardCase("least", 257),
    HeardCase("even", 16_000),
    HeardCase("odd", 7_321),
    HeardCase("hops", 5_760),
    HeardCase("seconds", 50_123),
)
