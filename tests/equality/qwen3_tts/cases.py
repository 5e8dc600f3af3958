"""What the vendor's package was asked, and how its answers are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tests.equality.recording import RATE_HZ

# Draws per case, the last of which gives no frame.
MAX_NEW_TOKENS = 14
# Every so many samples of a case's audio are kept; it divides nothing that the decoder does.
AUDIO_STEP = 13
DECODED_FRAMES = 40


class Recording(NamedTuple):
    """A reference recording: the stored samples, repeated or cut to `samples`, at `rate_hz`."""

    rate_hz: int
    samples: int

    @property
    def name(self) -> str:
        """What is known of it stands under this."""
        plain = self == REFERENCE
        return "reference" if plain else f"reference-{self.rate_hz}-{self.samples}"

    def of(self, stored: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """int16 [samples] of the stored reference [n]."""
        return np.resize(stored, self.samples)


REFERENCE = Recording(RATE_HZ, 13_000)
# Odd lengths, and those around 0.48 s, which are six frames at 24 kHz, or a sample more where
# the quotient of the rates is rounded up.
RECORDINGS = tuple(
    Recording(rate_hz, samples)
    for rate_hz in (8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000)
    for samples in (*(12 * rate_hz // 25 + more for more in (-1, 0, 1)), rate_hz // 3, 10_007)
)

TEXTS = (
    "Hello",
    "The weather is what you say it is.",
    "How many people hear the oil? You, and no one by the water.",
    "你好。 ñ ü, 😀!",
    "One two, 3.14 more of them; and then some other words that make it long enough, "
    "so that it goes on when all the codes have come.",
)
REFERENCE_TEXT = "What a sound!"
INSTRUCTION = "Speak like the water."


@dataclass(frozen=True, slots=True)
class Case:
    """One question. `voice` is empty with `clone`, which is `vector` or `codes`.

    `whole_text` is the vendor's non-streaming mode: all text before the first frame.
    """

    name: str
    kind: str
    text: str
    whole_text: bool
    language: str = "auto"
    voice: str = ""
    instruction: str = ""
    clone: str = ""
    recording: Recording = REFERENCE
    max_new_tokens: int = MAX_NEW_TOKENS


# What each is asked with, by the checkpoint's kind.
ASPECTS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("voice", "custom_voice", {"voice": "Alto"}),
    ("language", "custom_voice", {"voice": "bass", "language": "Chinese"}),
    (
        "instruction",
        "custom_voice",
        {"voice": "alto", "language": "english", "instruction": INSTRUCTION},
    ),
    ("vector", "base", {"clone": "vector", "language": "english"}),
    ("codes", "base", {"clone": "codes"}),
)


def all_cases() -> Iterator[Case]:
    """Five texts in both modes with each aspect, then the odd ones."""
    for aspect, kind, settings in ASPECTS:
        for index, text in enumerate(TEXTS):
            for mode in ("whole", "trailing"):
                name = f"{aspect}-{index}-{mode}"
                yield Case(name, kind, text, mode == "whole", **settings)
    odd, custom = TEXTS[1], "custom_voice"
    yield Case("dialect", custom, odd, True, voice="hill")
    yield Case("dialect-overruled", custom, odd, True, voice="hill", language="english")
    yield Case("nobody", custom, odd, False)
    yield Case("long", custom, TEXTS[0], True, voice="alto", max_new_tokens=70)
    for rate_hz in (22_050, 44_100):
        heard = Recording(rate_hz, 12 * rate_hz // 25)
        yield Case(f"codes-{rate_hz}", "base", odd, False, clone="codes", recording=heard)
        yield Case(f"vector-{rate_hz}", "base", odd, True, clone="vector", recording=heard)
    yield Case("two-draws", "base", odd, False, clone="vector", max_new_tokens=2)
