"""What the vendor's code was asked, and antiphon is asked: the same texts, voices and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tests.equality.recording import RATE_HZ, reference_voice

AUDIO_STEP = 29
"""Of the recorded audio every so many samples are kept."""

ZERO_SHOT, CROSS_LINGUAL, INSTRUCT, SFT = MODES = ("zero-shot", "cross-lingual", "instruct", "sft")

REFERENCE_TEXT = "You said that the water is good."
INSTRUCTION = "Say it slowly."
VOICE, ADDED_VOICE = "alto", "clara"

WORDS = (
    *("sound", "voice", "water", "oil", "number", "word", "hand", "part"),
    *("day", "way", "time", "look", "weather", "audio", "side", "line"),
)
TEXTS = {
    "english": "How are you today? I have time for some words about the weather.",
    "chinese": "你好。今天天气很好，我们去看水吧！",  # noqa: RUF001
    "digits": "Room 42 opens at 7:30, and 1999 people come in 3 days.",
    "emoji": "I like it 😀 very much!",
    "letter": "a",
    "question": "What is the first number?",
    "tags": "[breath]Well,[laughter] that is <strong>it</strong>.",
    "spanish": "¿Cómo está usted, señor?",
    "quotes": 'He said: "No." They said: "Yes!"',
    "long": " ".join(
        f"The {word} of the day was with you for {number} hours, but no people came to see it."
        for number, word in enumerate(WORDS, 1)
    ),
}
"""The last has 300 words."""


@dataclass(frozen=True, slots=True)
class Case:
    """A text in one of the `MODES`, with the voice of the checkpoint that it names, if any."""

    name: str
    mode: str
    text: str
    voice: str = ""


def all_cases() -> Iterator[Case]:
    """Each text in each mode, and some with a voice that was added from a recording."""
    for mode in MODES:
        for name, text in TEXTS.items():
            yield Case(f"{mode}-{name}", mode, text, VOICE if mode == SFT else "")
    for name in ("english", "chinese"):
        yield Case(f"added-{name}", ZERO_SHOT, TEXTS[name], ADDED_VOICE)


def reference_audio() -> npt.NDArray[np.int16]:
    """1.53 s."""
    return reference_voice(36_720)


def clips() -> dict[str, npt.NDArray[np.int16]]:
    """Recordings whose features are compared: of no multiple of anything, silent, short, long."""
    voice = reference_audio()
    return {
        "reference": voice,
        "odd": voice[:20_011],
        "short": voice[:2_400],
        "silence": np.zeros(RATE_HZ, np.int16),
        "long": np.tile(voice, 20)[: 30 * RATE_HZ],
    }


@dataclass(frozen=True, slots=True)
class PiecedCase:
    """A text that the talker is given in pieces. One that `asks` is for the checkpoint whose talker
    often asks for more text: see `draw_few_ends`."""

    name: str
    mode: str
    text: str
    voice: str = ""
    asks: bool = False


PIECED_TEXTS = {
    "letter": "a",
    "three": "How are you",
    "five": "I have the time.",
    "ten": "How are you today? I",
    "long": TEXTS["long"][:100],
    **{name: TEXTS[name] for name in ("english", "chinese", "emoji", "tags", "quotes")},
}
END, FILL, MORE_OFTEN = 6562, 6564, 3.0


def pieced_cases() -> Iterator[PiecedCase]:
    """Each text with a prompt of codes and without, which the vendor's code has modes for."""
    for name, text in PIECED_TEXTS.items():
        yield PiecedCase(f"zero-shot-{name}", ZERO_SHOT, text)
        yield PiecedCase(f"instruct-{name}", INSTRUCT, text)
        yield PiecedCase(f"asking-zero-shot-{name}", ZERO_SHOT, text, asks=True)
        yield PiecedCase(f"asking-instruct-{name}", INSTRUCT, text, asks=True)
    yield PiecedCase("added-english", ZERO_SHOT, TEXTS["english"], ADDED_VOICE)


def draw_few_ends(folder: Path, *, asks: bool) -> None:
    """Change a checkpoint so that its talker hardly draws ids that no trained one would: the
    vendor's code fails at them. One that `asks` often draws the one that asks for more text."""
    path = folder / "llm.pt"
    weights = torch.load(path, weights_only=True)
    head = weights["llm_decoder.weight"]
    few = [each for each in range(END - 1, len(head)) if each not in (END, FILL)]
    head[few] = 0
    if asks:
        head[FILL] *= MORE_OFTEN
    torch.save(weights, path)
