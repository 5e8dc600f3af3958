"""What the vendor's code was asked, and antiphon is asked: conversations and codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SEED = 3
RATE_HZ = 24_000
AUDIO_STEP = 17
"""Every so-many-th sample is recorded."""
ROW_STEP = 7

Float32 = npt.NDArray[np.float32]

CODES_CASES = {"one": 1, "two": 2, "few": 9, "piece": 64, "pieces": 150}
"""Numbers of codes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, `clip` and then `text`, and the text of the answer; empty for the last
    turn."""

    clip: str = ""
    text: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation, whose answer is spoken or in text alone, with at most `most` ids."""

    name: str
    turns: tuple[Turn, ...]
    most: int = 40
    system: str = ""
    spoken: bool = True


CASES = (
    Case("short", (Turn("short"),)),
    Case("odd", (Turn("odd"),), most=64),
    Case("noise", (Turn("noise"),), most=64),
    Case("silence", (Turn("silence"),)),
    Case("long", (Turn("long"),), most=24),
    Case("one", (Turn("short"),), most=1),
    Case("text", (Turn(text="how is the water?"),)),
    Case("both", (Turn("odd", "what is that sound?"),)),
    Case("system", (Turn("short"),), system="Say little."),
    Case("written", (Turn("short"),), spoken=False, most=64),
    Case("written-odd", (Turn("odd"),), spoken=False, most=64),
    Case("second", (Turn("short", answer="hello you"), Turn("odd"))),
    Case("third", (Turn("odd", answer="yes"), Turn(text="no", answer="oh"), Turn("noise"))),
)


def clips() -> dict[str, Float32]:
    """Recordings at `RATE_HZ`, by name."""
    drawn = np.random.default_rng(11)

    def tone(seconds: float, hertz: float) -> Float32:
        time = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
        noise = 0.02 * drawn.standard_normal(len(time))
        return (0.3 * np.sin(2 * np.pi * hertz * time) + noise).astype(np.float32)

    return {
        "short": tone(0.5, 220.0),
        # No whole number of frames, and an odd one.
        "odd": tone(1.01, 330.0)[:-77],
        "noise": (0.2 * drawn.standard_normal(18_000)).astype(np.float32),
        "silence": np.zeros(12_000, np.float32),
        # Two windows of the encoder.
        "long": tone(31.3, 150.0),
    }


def codes_of(name: str) -> npt.NDArray[np.uint16]:
    """Codes [n] of a case."""
    index = list(CODES_CASES).index(name)
    drawn = np.random.default_rng(100 + index)
    return drawn.integers(16_384, size=CODES_CASES[name]).astype(np.uint16)


def key_of(name: str) -> int:
    """The 128-bit key of the noise of codes."""
    return (list(CODES_CASES).index(name) + 1) << 100 | 77
