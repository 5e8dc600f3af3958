"""What the vendor's thinker was asked, and antiphon's is asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SEED = 5
RATE_HZ = 16_000
ROW_STEP = 17
"""Every so-many-th row of a recording or an image is recorded."""

Float32 = npt.NDArray[np.float32]
Pixels = npt.NDArray[np.uint8]

TEXT, AUDIO, IMAGE = "text", "audio", "image"


@dataclass(frozen=True, slots=True)
class Turn:
    """The parts of a user's message, each with its kind and its text or name, and the answer, which
    is empty for the last turn."""

    parts: tuple[tuple[str, str], ...]
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation whose answer has at most `most` ids."""

    name: str
    turns: tuple[Turn, ...]
    most: int = 32
    system: str = ""

    def named(self, kind: str) -> list[str]:
        """The names of all recordings or images, in order."""
        return [name for turn in self.turns for of_kind, name in turn.parts if of_kind == kind]


def said(text: str, answer: str = "") -> Turn:
    """A message of text alone."""
    return Turn(((TEXT, text),), answer)


CASES = (
    Case("hello", (said("Hello, how are you?"),)),
    Case("long", (said("what can you see in the water? " * 12),), most=64),
    Case("chinese", (said("你好。今天天气很好。"),), most=64),
    Case("one", (said("yes"),), most=1),
    Case("system", (said("how many people are there?"),), system="Say little."),
    Case("second", (said("Hello you", "Hello. yes."), said("what is that word?"))),
    Case("third", (said("a", "b"), said("c", "d. e"), said("f")), most=48, system="Write."),
    Case("heard", (Turn(((AUDIO, "short"),)),)),
    Case("heard-odd", (Turn(((AUDIO, "odd"), (TEXT, "what is that sound?"))),), most=48),
    Case("heard-long", (Turn(((TEXT, "listen: "), (AUDIO, "long"))),), most=16),
    Case("heard-silence", (Turn(((AUDIO, "silence"),)),)),
    Case("heard-again", (Turn(((AUDIO, "odd"),), "yes."), said("what did I say?"))),
    Case("heard-both", (Turn(((AUDIO, "short"), (AUDIO, "odd"))),)),
    Case("seen", (Turn(((IMAGE, "wide"), (TEXT, "what is there?"))),)),
    Case("seen-tall", (Turn(((TEXT, "look: "), (IMAGE, "tall"))),), most=48),
    Case("seen-small", (Turn(((IMAGE, "small"),)),)),
    Case("seen-both", (Turn(((IMAGE, "small"), (IMAGE, "wide"), (TEXT, "and?"))),)),
    Case("seen-again", (Turn(((IMAGE, "tall"),), "a word."), said("say it"))),
    # Near the beginning, so that rows or columns have negative positions.
    Case("seen-high", (Turn(((IMAGE, "high"), (TEXT, "so?"))),), system="."),
    Case("seen-broad", (Turn(((IMAGE, "broad"), (TEXT, "so?"))),), system="."),
    Case("all", (Turn(((IMAGE, "wide"), (AUDIO, "short"), (TEXT, "what is it?"))),), most=48),
)


def recordings() -> dict[str, Float32]:
    """Recordings at `RATE_HZ`, by name."""
    drawn = np.random.default_rng(17)

    def tone(seconds: float, hertz: float) -> Float32:
        time = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
        noise = 0.02 * drawn.standard_normal(len(time))
        return (0.3 * np.sin(2 * np.pi * hertz * time) + noise).astype(np.float32)

    return {
        "short": tone(0.5, 220.0),
        # No whole number of frames.
        "odd": tone(1.03, 330.0)[:-77],
        "silence": np.zeros(8_000, np.float32),
        "long": tone(9.0, 150.0),
    }


def images() -> dict[str, Pixels]:
    """RGB images [height, width, 3], by name."""
    drawn = np.random.default_rng(23)
    sizes = {
        "wide": (70, 150),
        "tall": (300, 64),
        "small": (20, 33),
        "high": (2700, 40),
        "broad": (50, 2700),
    }
    return {
        name: drawn.integers(256, size=(*size, 3), dtype=np.uint8) for name, size in sizes.items()
    }
