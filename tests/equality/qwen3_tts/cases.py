"""What the vendor's package was asked, and how its answers are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SEED = 0
# Draws per case, the last of which gives no frame.
MAX_NEW_TOKENS = 14
# Every so many samples of a case's audio are kept; it divides nothing that the decoder does.
AUDIO_STEP = 13
REFERENCE_SAMPLES = 13_000
DECODED_FRAMES = 40

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
    yield Case("two-draws", "base", odd, False, clone="vector", max_new_tokens=2)
