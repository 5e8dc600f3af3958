"""What the vendor's code was asked, and antiphon is asked: the same texts, voices and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SEED = 0
AUDIO_STEP = 97
"""Of the recorded audio every so many samples are kept."""
LATENT_STEP = 5
"""Of each recorded latent every so many values are kept."""
RATE_HZ = 44_100

PLAIN, CLIP, VOICE, DESCRIPTION = MODES = ("plain", "clip", "voice", "description")
"""Without a voice; by a recording and what it says; by a recording alone; by a description."""
NAMED, VOICE_NAME = "named", "灵小甄"
"""By the name of a voice that the released model was trained on."""

REFERENCE_TEXT = "You said that the water is good."
STYLE = "A calm voice, slowly: 慢一点。"
MOST_STEPS = 40

TEXTS = {
    "english": "How are you today? I have time for some words about the weather.",
    "chinese": "你好。今天天气很好，我们去看水吧！",  # noqa: RUF001
    "digits": "Room 42 opens at 7:30, and 1999 people come in 3 days.",
    "emoji": "I like it 😀 very much!",
    "letter": "a",
    "question": "What is the first number?",
    "spanish": "¿Cómo está usted, señor?",
    "quotes": 'He said: "No." They said: "Yes!"',
    "lines": " speaker_1:Hello\n speaker_2:Good day\n",
    "music": " Genre: jazz. Mood: calm. Instrument: oil drum. Theme: day. Duration: 3s.",
    "spaces": "  Well  then  ",
    "long": "The water of the day was with you for many hours, but no people came to see it. " * 4,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A text in one of the `MODES`, with a limit of steps and a temperature of the flow."""

    name: str
    mode: str
    text: str
    most_steps: int = MOST_STEPS
    temperature: float = 0.0


def all_cases() -> Iterator[Case]:
    """Each text in each mode, and some with a short limit or a warm flow."""
    for mode in MODES:
        for name, text in TEXTS.items():
            yield Case(f"{mode}-{name}", mode, text)
    yield Case("cut-at-one", PLAIN, TEXTS["english"], most_steps=1)
    yield Case("cut-at-four", CLIP, TEXTS["english"], most_steps=4)
    yield Case("warm-plain", PLAIN, TEXTS["english"], temperature=1.0)
    yield Case("warm-clip", CLIP, TEXTS["chinese"], temperature=2.5)
    for name, text in TEXTS.items():
        yield Case(f"{NAMED}-{name}", NAMED, text)


def reference_audio() -> npt.NDArray[np.int16]:
    """Something like a voice, 1.53 s at 44.1 kHz, the same everywhere."""
    count = 67_473
    time = np.arange(count) / RATE_HZ
    noise = np.random.default_rng(SEED).standard_normal(count)
    pitch = 2 * np.pi * (140 * time + 30 * np.sin(3 * time))
    wave = sum(np.sin(each * pitch) / each for each in range(1, 12))
    loud = 0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)
    mixed = loud * (0.25 * wave + 0.05 * noise)
    samples: npt.NDArray[np.int16] = (np.clip(mixed, -1, 1) * 32767).astype(np.int16)
    return samples


def clips() -> dict[str, npt.NDArray[np.int16]]:
    """Recordings whose features are compared: whole steps, no multiple, silence, long."""
    voice = reference_audio()
    return {
        "reference": voice,
        "steps": voice[: 4 * 14_112],
        "short": voice[:4_410],
        "silence": np.zeros(RATE_HZ, np.int16),
        "long": np.tile(voice, 9),
    }
