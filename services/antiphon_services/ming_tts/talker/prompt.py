"""The prompt of an utterance, which consists of token IDs, a speaker and latents.

Special tokens mark the rows of the speaker and the latents. This module mirrors the vendor's
`prepare_input_embed` for the dense model, and `build_tts_input` for Ming-flash-omni. It does not
import torch.
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
"""If a text contains all of these marks, it is not preceded by `TEXT_HEADER`."""

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPEAKER_START, SPEAKER, SPEAKER_END = "<|vision_start|>", "<|vision_pad|>", "<|vision_end|>"
AUDIO_START, AUDIO = "<audio>", "<audioPatch>"

CONTROL = (
    *(START, END, END_OF_TEXT, SPEAKER_START, SPEAKER, SPEAKER_END),
    *(AUDIO_START, AUDIO),
)
"""All control tokens that a prompt can contain."""

LEAST_CAP_S, CHARACTERS_PER_S = 2.0, 16000 / 5818
HELD_SAMPLES = 1323
MOST_STEPS = 1000
"""The maximum duration of an utterance in Ming-flash-omni.

It depends on the number of characters, which the vendor's `omni_audio_generation` compares with the
duration of the streamed samples. This stream lags behind by `HELD_SAMPLES`, half the overlap of two
windows. `MOST_STEPS` is the limit of the vendor's `generate`.
"""

Floats = npt.NDArray[np.float32]
Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class RecordedVoice:
    """The data extracted from a recording.

    `speaker` is a float32 array of shape [192], and `latents` is a float32 array of shape [4 * n,
    64].
    """

    speaker: Floats
    latents: Floats


@dataclass(frozen=True, slots=True)
class LatentPrompt:
    """The prompt of an utterance.

    `ids` is an int32 array of shape [rows]. The row at `speaker_row` contains the speaker, or zeros
    if `speaker` is None. If `speaker_row` is None, the prompt has no speaker row. The last rows
    contain `latents`, with four latents per row. `past` contains the latents that precede the first
    step of the flow. `most_steps` is the maximum number of steps.
    """

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
    """Create a prompt that speaks `text`.

    If there is a `reference_text`, the latents of the voice are part of the prompt. `instruction`
    is a caption in the vendor's JSON format. If `nameless` is true, the prompt has a speaker row
    even if there is no voice. If `flash` is true, the prompt has the layout of Ming-flash-omni.
    """
    ids = [control[START], *encode(f"system\n{SYSTEM}"), control[END], *encode("\n")]
    ids += [control[START], *encode("user\n"), *encode(TASK)]
    speaker_row = None
    if voice is not None or nameless:
        ids += [*encode("  speaker_1:"), control[SPEAKER_START]]
        speaker_row = len(ids)
        ids += [control[SPEAKER], control[SPEAKER_END], *encode("\n")]
    music = describes_music(text)
    if not music:
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
        # Like the vendor's code, this applies even if there is no transcript.
        past = voice.latents
    most = None
    if flash:
        # A description of music is not read aloud, so its length does not limit the music.
        most = MOST_STEPS if music else flash_steps(len(text))
    return LatentPrompt(np.array(ids, np.int32), speaker_row, speaker, latents, past, most)


def describes_music(text: str) -> bool:
    """Return whether a text describes music instead of being spoken."""
    return all(mark in text for mark in MUSIC_MARKS)


def flash_steps(characters: int) -> int:
    """Return the maximum number of steps for a text with `characters` characters in
    Ming-flash-omni.

    This is the first step at which the streamed samples are longer than `LEAST_CAP_S` and long
    enough for the characters.
    """
    for steps in range(1, MOST_STEPS):
        streamed_s = (steps * STEP_LATENTS * LATENT_SAMPLES - HELD_SAMPLES) / SAMPLE_RATE_HZ
        if streamed_s > LEAST_CAP_S and streamed_s * CHARACTERS_PER_S >= characters:
            return steps
    return MOST_STEPS
