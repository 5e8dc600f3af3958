"""Validates the voice options of a request. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.pipelines.ming_tts import SAMPLE_RATE_HZ
from antiphon.values.options import OptionValue
from antiphon.values.sampling import Sampling
from antiphon_services.ming_tts.talker.caption import (
    DIALECT,
    EMOTION,
    PACE,
    PITCH,
    STYLE,
    VOICE,
    VOLUME,
)
from antiphon_services.stage.voices import choose_voice, text_option

LEAST_REFERENCE_SAMPLES = SAMPLE_RATE_HZ // 10
"""The minimum length of a reference recording in samples. It is sufficient for the windows of every
network.
"""

CAPTIONED = {
    "instruction": STYLE,
    "dialect": DIALECT,
    "pace": PACE,
    "pitch": PITCH,
    "volume": VOLUME,
    "emotion": EMOTION,
}
"""Maps options to the parts of the caption that they set."""


@dataclass(frozen=True, slots=True)
class MingVoiceRequest:
    """The voice of a request.

    The voice is either described by the parts of a `caption`, or it is the recording in the
    checkpoint whose name is `stored`. A caption can be combined with a `reference` recording, a
    float32 array of shape [n] at 44.1 kHz, and its transcript. If none of these are set, the model
    chooses a voice.
    """

    caption: Mapping[str, str] = field(default_factory=dict)
    reference: npt.NDArray[np.float32] | None = None
    reference_text: str = ""
    stored: str = ""


def read_voice(
    voice: str, options: Mapping[str, OptionValue], voices: Sequence[str], *, stored: bool = False
) -> MingVoiceRequest:
    """Parse the voice of a request.

    `voices` contains the names of `stored` recordings, or names that can be used in captions.
    Raises `InvalidArgument`, with the name of the option, if the options are invalid.
    """
    reference, text = options.get("reference_audio"), text_option(options, "reference_text")
    caption = {part: text_option(options, name) for name, part in CAPTIONED.items()}
    if voice and not voices:
        raise _refused("voice", "the checkpoint has no named voices; leave it out")
    named = choose_voice(voice, voices) if voice else ""
    if not stored:
        caption[VOICE] = named
    caption = {part: told for part, told in caption.items() if told}
    if not isinstance(reference, np.ndarray):
        if text:
            raise _refused(
                "options.reference_text",
                "requires options.reference_audio; set it, or leave this out",
            )
        return MingVoiceRequest(caption, stored=named if stored else "")
    if voice:
        raise _refused(
            "voice", "can't be combined with options.reference_audio; set only one of them"
        )
    if len(reference) < LEAST_REFERENCE_SAMPLES:
        raise _refused(
            "options.reference_audio",
            f"is too short: {len(reference) / SAMPLE_RATE_HZ:.3f} s; the minimum is "
            f"{LEAST_REFERENCE_SAMPLES / SAMPLE_RATE_HZ:g} s",
        )
    return MingVoiceRequest(caption, reference, text)


def check_sampling(sampling: Sampling) -> None:
    """Raise `InvalidArgument` for sampling settings that only apply to tokens."""
    neutral = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    for name, value in neutral.items():
        if getattr(sampling, name) != value:
            raise _refused(
                name,
                f"must be {value:g}, because this talker doesn't sample token IDs; leave it out",
            )


def _refused(field: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {reason}", field=field)
