"""What the vendor's code was asked, and antiphon is asked: texts, recordings, codes, all greedy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SEED = 0
VOICE_SEED = 1
"""Of noise under which no code of a prompt is a narrow choice."""
RATE_HZ = 24_000
SAMPLES_PER_FRAME = 960
GROUP, CHANNELS = 4, 8
CODEBOOKS = (1024, 1024, 128, 128, 128, 128, 128, 128)

AUDIO_STEP, MEL_STEP = 29, 91
"""Of the recorded audio and mel every so many numbers are kept."""

TTS, ASR, UNDERSTANDING, DIALOGUE, TEXT_DIALOGUE, SPEECH_TO_TEXT = TASKS = (
    "tts",
    "asr",
    "understanding",
    "dialogue",
    "text_dialogue",
    "speech_to_text",
)

TRANSCRIBE = "Please transcribe this audio file"
"""The vendor draws one of 22 such requests at random."""

TEXTS = {
    "english": "How are you today? I have time for some words about the weather.",
    "chinese": "你好。今天天气很好，我们去看水吧！",  # noqa: RUF001
    "letter": "a",
    "emoji": "I like it 😀 very much!",
    "shout": "WHAT IS THE FIRST NUMBER?",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A request of one of the `TASKS`, and how many positions its answer has at most.

    `clip` is a recording that is heard, `voice` one whose voice is taken. With `described`, the
    text itself says how to speak. `earlier` turns, of a text and a clip each, come before the last.
    """

    name: str
    task: str
    text: str = ""
    clip: str = ""
    voice: str = ""
    instruct: str | None = None
    described: bool = False
    thinking: bool = False
    system: str | None = None
    earlier: tuple[tuple[str, str], ...] = ()
    most: int = 40


CASES = (
    *(Case(f"tts-{name}", TTS, text) for name, text in TEXTS.items()),
    Case("tts-long", TTS, " ".join([TEXTS["english"]] * 6), most=200),
    Case("tts-instruct", TTS, TEXTS["english"], instruct="slowly, with joy"),
    Case("tts-voice", TTS, TEXTS["english"], instruct="slowly", voice="voice"),
    Case("tts-described", TTS, "Say with anger: go away!", described=True),
    Case("tts-described-voice", TTS, TEXTS["chinese"], described=True, voice="odd"),
    Case("tts-one-position", TTS, TEXTS["english"], most=1),
    *(Case(f"asr-{clip}", ASR, clip=clip) for clip in ("voice", "odd", "silence")),
    Case("understanding", UNDERSTANDING, "What do you hear?", clip="voice"),
    Case("understanding-thinking", UNDERSTANDING, "Who speaks?", clip="odd", thinking=True),
    Case("dialogue", DIALOGUE, clip="voice"),
    Case("dialogue-system", DIALOGUE, clip="odd", system="You are a helpful assistant."),
    Case("dialogue-voice", DIALOGUE, clip="voice", voice="odd"),
    Case(
        "dialogue-turns",
        DIALOGUE,
        clip="odd",
        system="Be short.",
        earlier=((TEXTS["english"], "voice"), (TEXTS["letter"], "silence")),
    ),
    *(Case(f"text-{name}", TEXT_DIALOGUE, text) for name, text in TEXTS.items()),
    Case("text-thinking", TEXT_DIALOGUE, TEXTS["english"], thinking=True),
    Case("text-turns", TEXT_DIALOGUE, TEXTS["letter"], earlier=((TEXTS["english"], ""),)),
    Case("speech-to-text", SPEECH_TO_TEXT, clip="voice"),
    Case("speech-to-text-turns", SPEECH_TO_TEXT, clip="odd", earlier=((TEXTS["letter"], "voice"),)),
)


PROMPTED = ("voice", "odd", "silence")
"""Recordings that cases hear."""


def clips() -> dict[str, npt.NDArray[np.float32]]:
    """Recordings at 24 kHz: like a voice, of no multiple of anything, silent, short, long.

    The longest has two segments for the vendor's encoder, of 6000 mel frames at most.
    """
    voice = voice_like()
    return {
        "voice": voice,
        "odd": voice[:20_011],
        "short": voice[:1_500],
        "silence": np.zeros(RATE_HZ // 2, np.float32),
        "long": np.tile(voice, 41)[: 61 * RATE_HZ],
    }


def voice_like() -> npt.NDArray[np.float32]:
    """Something like a voice, 1.53 s at 24 kHz, the same everywhere."""
    count = 36_720
    time = np.arange(count) / RATE_HZ
    noise = np.random.default_rng(VOICE_SEED).standard_normal(count)
    pitch = 2 * np.pi * (140 * time + 30 * np.sin(3 * time))
    wave = sum(np.sin(each * pitch) / each for each in range(1, 12))
    loud = 0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)
    mixed = np.clip(loud * (0.25 * wave + 0.05 * noise), -1, 1) * 32767
    return mixed.astype(np.int16).astype(np.float32) / np.float32(32768)


CODES_CASES = {"one": 1, "two": 2, "ten": 10, "forty": 40, "long": 400, "two-segments": 1510}
"""Frames of random codes, which audio was made of."""
ZEROS = "zeros"
"""A case whose codes are all zero, which is a code like any other."""
STREAMED, STREAMED_CHUNK = "long", 40
"""The case that was also decoded by the vendor's streaming, in chunks of so many frames."""


def codes_of(name: str) -> npt.NDArray[np.uint16]:
    """uint16 [frames, channels] of a case of `CODES_CASES`, or of `ZEROS`."""
    if name == ZEROS:
        return np.zeros((12, CHANNELS), np.uint16)
    draw = np.random.default_rng(CODES_CASES[name])
    columns = [draw.integers(size, size=CODES_CASES[name]) for size in CODEBOOKS]
    return np.stack(columns, 1).astype(np.uint16)
