"""The prompt of an utterance: ids, and what stands in the places of two kinds of them.

Mirrors `prepare_input_embed` of the vendor for the dense model, and `build_tts_input` of
Ming-flash-omni. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.pipelines.ming_tts import (
    LATENT_SAMPLES,
    LATENT_WIDTH,
    SAMPLE_RATE_HZ,
    SPEAKER_WIDTH,
    STEP_LATENTS,
)

SYSTEM = "You are a helpful assistant."
TASK = "Please generate speech based on the following description.\n"
TEXT_HEADER = " Text input:\n"
MUSIC_MARKS = ("Genre: ", "Mood: ", "Instrument: ", "Theme: ", "Duration: ")
"""A text that has all of them has no `TEXT_HEADER` before it."""

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPEAKER_START, SPEAKER, SPEAKER_END = "<|vision_start|>", "<|vision_pad|>", "<|vision_end|>"
AUDIO_START, AUDIO = "<audio>", "<audioPatch>"

CONTROL = (
    *(START, END, END_OF_TEXT, SPEAKER_START, SPEAKER, SPEAKER_END),
    *(AUDIO_START, AUDIO),
)
"""Every control token of a prompt."""

LEAST_CAP_S, CAP_S_PER_CHARACTER = 2.0, 5818 / 16000
MOST_STEPS = 200
"""The longest speech of an utterance in Ming-flash-omni: by its characters, and in steps."""

Floats = npt.NDArray[np.float32]
Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class RecordedVoice:
    """What a recording gives: `speaker` float32 [192], and `latents` float32 [4 * n, 64]."""

    speaker: Floats
    latents: Floats


@dataclass(frozen=True, slots=True)
class LatentPrompt:
    """`ids` int32 [rows]. The row `speaker_row` is the speaker's, or zero if `speaker` is None;
    there is none if `speaker_row` is None. The last rows are those of `latents`, four each. The
    first step's flow sees the latents `past` before it. Speech has at most `most_steps` steps."""

    ids: npt.NDArray[np.int32]
    speaker_row: int | None
    speaker: Floats | None
    latents: Floats
    past: Floats
    most_steps: int | None = None


NO_LATENTS = np.zeros((0, LATENT_WIDTH), np.float32)


def make_prompt(
    encode: Encode,
    control: Mapping[str, int],
    text: str,
    *,
    voice: RecordedVoice | None = None,
    reference_text: str = "",
    instruction: str | None = None,
    nameless: bool = False,
    flash: bool = False,
) -> LatentPrompt:
    """The prompt that speaks `text`.

    With a `reference_text` the voice's latents are part of it. `instruction` is the JSON of the
    vendor's caption. `nameless` reserves the speaker's row where there is no voice. With `flash` it
    is the prompt of Ming-flash-omni.
    """
    ids = [control[START], *encode(f"system\n{SYSTEM}"), control[END], *encode("\n")]
    ids += [control[START], *encode("user\n"), *encode(TASK)]
    speaker_row = None
    if voice is not None or nameless:
        ids += [*encode("  speaker_1:"), control[SPEAKER_START]]
        speaker_row = len(ids)
        ids += [control[SPEAKER], control[SPEAKER_END], *encode("\n")]
    if not all(mark in text for mark in MUSIC_MARKS):
        ids += encode(TEXT_HEADER)
    cloned = voice is not None and reference_text
    if cloned:
        ids += encode(reference_text)
    ids += [*encode(text), control[END], *encode("\n")]
    ids += [control[START], *encode("assistant\n")]
    if instruction is not None:
        ids += [*encode(instruction), control[END if flash else END_OF_TEXT]]
    ids.append(control[AUDIO_START])
    latents = voice.latents if voice is not None and cloned else NO_LATENTS
    ids += [control[AUDIO]] * (len(latents) // STEP_LATENTS)
    speaker = None if voice is None else voice.speaker.reshape(SPEAKER_WIDTH)
    past = latents
    if flash and voice is not None:
        # As in the vendor's code, also where the recording's text is not known.
        past = voice.latents
    most = flash_steps(len(text)) if flash else None
    return LatentPrompt(np.array(ids, np.int32), speaker_row, speaker, latents, past, most)


def flash_steps(characters: int) -> int:
    """The most steps of speech in Ming-flash-omni, by the number of characters of its text."""
    longest_s = max(LEAST_CAP_S, characters * CAP_S_PER_CHARACTER)
    steps = int(longest_s / (STEP_LATENTS * LATENT_SAMPLES / SAMPLE_RATE_HZ))
    return min(max(1, steps), MOST_STEPS)
