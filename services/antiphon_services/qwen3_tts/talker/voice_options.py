"""Validates a request's voice options against the checkpoint's type.

Types and defaults are the same as in the vendor's package. A checkpoint either has preset voices,
designs a voice based on an instruction, or clones the voice in a recording. Options that the
package would silently ignore raise an error here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.errors import FailedPrecondition, InvalidArgument, told
from antiphon.pipelines.files import CONFIG_FILE, REMEDY
from antiphon.pipelines.qwen3_tts import SAMPLE_RATE_HZ, TEXT_MODES, WHOLE_TEXT
from antiphon.values.options import OptionValue
from antiphon_services.qwen3_tts.talker.prompt import SpeechIds
from antiphon_services.stage.voices import text_option

AUTO = "auto"
"""The vendor's name for an unspecified language."""

# The number of samples in a frame. The codec needs at least this many, although fewer would be
# enough for the speaker encoder.
LEAST_REFERENCE_SAMPLES = 1920

_CUSTOM_VOICE = "custom_voice"
# The vendor's package ignores instructions for models of this size.
_SMALL = "0b6"


@dataclass(frozen=True, slots=True)
class CheckpointKind:
    """The options that a type of checkpoint supports. `name` is the checkpoint's `tts_model_type`.

    `whole_text` is the default of `text_mode`. `instead` is what error messages suggest if a
    checkpoint doesn't have preset voices.
    """

    name: str
    has_voices: bool = False
    instructs: bool = False
    clones: bool = False
    whole_text: bool = True
    instead: str = ""

    @property
    def options(self) -> frozenset[str]:
        """The names of the options that are supported."""
        names = {"language", "text_mode"}
        names |= {"instruction"} if self.instructs else set()
        return frozenset(names | ({"reference_audio", "reference_text"} if self.clones else set()))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CheckpointKind:
        """Return the type specified in a checkpoint's `config.json`. Raises `FailedPrecondition` if
        it is not supported.
        """
        name = config.get("tts_model_type")
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None:
            known = ", ".join(sorted(_KINDS))
            raise FailedPrecondition(
                f"{CONFIG_FILE}: tts_model_type must be one of {known}, got {told(name)}; {REMEDY}"
            )
        if kind.name == _CUSTOM_VOICE and config.get("tts_model_size") == _SMALL:
            return replace(kind, instructs=False)
        return kind


_KINDS = {
    each.name: each
    for each in (
        CheckpointKind(_CUSTOM_VOICE, has_voices=True, instructs=True),
        CheckpointKind(
            "voice_design", instructs=True, instead="describe a voice in options.instruction"
        ),
        CheckpointKind(
            "base",
            clones=True,
            whole_text=False,
            instead="set options.reference_audio to a recording of the voice",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class VoiceOptions:
    """The voice options of a request. All names are in lower case and are empty if they weren't
    specified.

    `reference` contains samples of the voice to clone (float32 [n] at 24 kHz), and `reference_text`
    is their transcript.
    """

    voice: str = ""
    language: str = ""
    instruction: str = ""
    whole_text: bool = True
    reference: npt.NDArray[np.float32] | None = None
    reference_text: str = ""


def read_voice_options(
    voice: str, options: Mapping[str, OptionValue], kind: CheckpointKind, ids: SpeechIds
) -> VoiceOptions:
    """Return the voice options of a request. Raises `InvalidArgument` if this checkpoint doesn't
    support one of them.
    """
    texts = {
        name: text_option(options, name) for name in ("language", "instruction", "reference_text")
    }
    reference = options.get("reference_audio")
    manner = VoiceOptions(
        voice=voice.lower(),
        language=_language(texts["language"]),
        instruction=texts["instruction"],
        whole_text=_whole_text(options, kind),
        reference=reference if isinstance(reference, np.ndarray) else None,
        reference_text=texts["reference_text"],
    )
    if manner.voice and not kind.has_voices:
        raise _refused("voice", kind, f"has no named voices; leave it out and {kind.instead}")
    if manner.voice:
        ids.voice(manner.voice)
    ids.language(manner.language, manner.voice)
    if manner.instruction and not kind.instructs:
        raise _refused("options.instruction", kind, "doesn't accept an instruction; leave it out")
    _check_reference(manner, kind)
    return manner


def _check_reference(manner: VoiceOptions, kind: CheckpointKind) -> None:
    """Raise an error if a recording is missing although the checkpoint clones voices, or if there
    is a recording although it doesn't. It is also an error to provide a transcript without a
    recording.
    """
    reference = manner.reference
    if reference is not None and not kind.clones:
        raise _refused("options.reference_audio", kind, "can't clone voices; leave it out")
    if manner.reference_text and reference is None:
        raise InvalidArgument(
            "options.reference_text: requires options.reference_audio; set it, or leave this out",
            field="options.reference_text",
        )
    if not kind.clones:
        return
    if reference is None:
        raise _refused(
            "options.reference_audio",
            kind,
            "has no built-in voice; set it to a recording of a voice",
        )
    if len(reference) < LEAST_REFERENCE_SAMPLES:
        raise InvalidArgument(
            f"options.reference_audio: is too short: {len(reference) / SAMPLE_RATE_HZ:.3f} s; "
            f"the minimum is {LEAST_REFERENCE_SAMPLES / SAMPLE_RATE_HZ:g} s",
            field="options.reference_audio",
        )


def _whole_text(options: Mapping[str, OptionValue], kind: CheckpointKind) -> bool:
    """Return whether the whole text comes before the first frame."""
    mode = text_option(options, "text_mode").lower()
    if mode and mode not in TEXT_MODES:
        raise InvalidArgument(
            f"options.text_mode: must be one of {', '.join(TEXT_MODES)}, got {told(mode)}",
            field="options.text_mode",
        )
    return mode == WHOLE_TEXT if mode else kind.whole_text


def _language(given: str) -> str:
    name = given.lower()
    return "" if name == AUTO else name


def _refused(field: str, kind: CheckpointKind, reason: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: this checkpoint ({kind.name}) {reason}", field=field)
