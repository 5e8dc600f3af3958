"""Converts the flat fields in the beta version of the realtime API to the current fields.

Twilio's samples, older releases of Pipecat and LiveKit, and other clients still send them. If both
are present, the current field is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.errors import InvalidArgument, told
from antiphon_gateway.endpoints.realtime.client_events import (
    AudioSettings,
    BetaFields,
    InputSettings,
    OutputSettings,
    ResponseSettings,
    SampleFormat,
    SessionSettings,
)
from antiphon_gateway.media.live_audio import LIVE_FORMATS

FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}


def session_of_today(asked: SessionSettings) -> SessionSettings:
    """Convert the beta fields in session settings. Raises `InvalidArgument` if they are invalid."""
    changed = replace(
        asked,
        output_modalities=asked.output_modalities or _modalities(asked.modalities, "session"),
        max_output_tokens=_first(asked.max_output_tokens, asked.max_response_output_tokens),
    )
    audio = _audio(asked, asked.audio, "session")
    given = audio.input or InputSettings()
    if given.turn_detection is UNSET:
        given = replace(given, turn_detection=asked.turn_detection)
    if given.transcription is UNSET:
        given = replace(given, transcription=asked.input_audio_transcription)
    return replace(changed, audio=replace(audio, input=given))


def response_of_today(asked: ResponseSettings) -> ResponseSettings:
    """Convert the beta fields in response settings. Raises `InvalidArgument` if they are
    invalid.
    """
    return replace(
        asked,
        output_modalities=asked.output_modalities or _modalities(asked.modalities, "response"),
        max_output_tokens=_first(asked.max_output_tokens, asked.max_response_output_tokens),
        audio=_audio(asked, asked.audio, "response"),
    )


def _audio(beta: BetaFields, today: AudioSettings | None, where: str) -> AudioSettings:
    """Return the audio settings. Missing values are taken from the beta fields."""
    audio = today or AudioSettings()
    given, made = audio.input or InputSettings(), audio.output or OutputSettings()
    if given.format is None:
        given = replace(given, format=_format(beta.input_audio_format, "input", where))
    if made.format is None:
        made = replace(made, format=_format(beta.output_audio_format, "output", where))
    if made.voice is None:
        made = replace(made, voice=beta.voice)
    return AudioSettings(given, made)


def _format(name: str | None, way: str, where: str) -> SampleFormat | None:
    if name is None:
        return None
    if name not in FORMATS:
        field = f"{where}.{way}_audio_format"
        known = ", ".join(FORMATS)
        raise InvalidArgument(
            f"{field}: unknown value {told(name)}; use one of: {known}", field=field
        )
    return SampleFormat(LIVE_FORMATS[FORMATS[name]].name)


def _modalities(asked: Sequence[str] | None, where: str) -> tuple[str, ...] | None:
    """Convert modalities. In the beta, text and audio could be combined. This corresponds to audio
    in the current API, which includes a transcript.
    """
    if asked is None:
        return None
    if not asked or not set(asked) <= {"text", "audio"}:
        field = f"{where}.modalities"
        raise InvalidArgument(f"{field}: must be 'text', 'audio' or both", field=field)
    return ("audio",) if "audio" in asked else ("text",)


def _first(today: int | str | None, beta: int | str | None) -> int | str | None:
    return beta if today is None else today
