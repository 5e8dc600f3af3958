"""Validates the voice options of a request. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.pipelines.cosyvoice3 import LEAST_CODES, SAMPLE_RATE_HZ
from antiphon.values.options import OptionValue
from antiphon.values.sampling import Sampling
from antiphon_services.stage.voices import choose_voice, text_option

LEAST_REFERENCE_SAMPLES = SAMPLE_RATE_HZ // 10
"""The minimum length of a reference recording in samples.

It corresponds to three codes and is sufficient for the windows of every network.
"""


@dataclass(frozen=True, slots=True)
class VoiceRequest:
    """The voice of a request.

    Either `name` is the name of a voice in the checkpoint, or `reference` is a recording, as a
    float32 array of shape [n] at 24 kHz. A recording can be combined with its transcript
    (`reference_text`) or with an `instruction`. An utterance has at least `least_codes` draws per
    text token.
    """

    name: str = ""
    reference: npt.NDArray[np.float32] | None = None
    reference_text: str = ""
    instruction: str = ""
    least_codes: float = 0.0


def read_voice(
    voice: str, options: Mapping[str, OptionValue], voices: Sequence[str]
) -> VoiceRequest:
    """Parse the voice of a request. The default is the first voice of the checkpoint.

    Raises `InvalidArgument`, with the name of the option, if the options are invalid.
    """
    reference = options.get("reference_audio")
    text, instruction = (text_option(options, name) for name in ("reference_text", "instruction"))
    least_codes = options.get(LEAST_CODES, 0.0)
    assert isinstance(least_codes, int | float), "the runtime checks options"
    if isinstance(reference, np.ndarray):
        if voice:
            raise _refused(
                "voice", "can't be combined with options.reference_audio; set only one of them"
            )
        if text and instruction:
            raise _refused(
                "options.reference_text",
                "can't be combined with options.instruction, which replaces it; set only one of "
                "them",
            )
        if len(reference) < LEAST_REFERENCE_SAMPLES:
            raise _refused(
                "options.reference_audio",
                f"is too short: {len(reference) / SAMPLE_RATE_HZ:.3f} s; the minimum is "
                f"{LEAST_REFERENCE_SAMPLES / SAMPLE_RATE_HZ:g} s",
            )
        return VoiceRequest("", reference, text, instruction, least_codes)
    for name, value in (("reference_text", text), ("instruction", instruction)):
        if value:
            raise _refused(
                f"options.{name}", "requires options.reference_audio; set it, or leave this out"
            )
    if not voices:
        raise _refused(
            "options.reference_audio",
            "this checkpoint has no built-in voices; set options.reference_audio",
        )
    return VoiceRequest(choose_voice(voice, voices), least_codes=least_codes)


def check_sampling(sampling: Sampling) -> None:
    """Raise `InvalidArgument` if the model does not support a sampling setting."""
    if sampling.repetition_penalty != 1.0:
        raise _refused(
            "repetition_penalty",
            "must be 1, because this talker resamples repeated codes instead; leave it out",
        )


def _refused(field: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {reason}", field=field)
