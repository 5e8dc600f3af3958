"""Settings as the realtime API writes them: what a client changes, and what holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import UNSET

from antiphon.errors import InvalidArgument
from gateway.conversations.settings import ConversationSettings
from gateway.doors.http.voice import voice_name
from gateway.doors.realtime.client_events import (
    AudioSettings,
    ResponseSettings,
    SampleFormat,
    SessionSettings,
)
from gateway.doors.realtime.turn_settings import read_turns, turns_json

RATE_HZ = 24_000
"""The only rate of the API's `audio/pcm`."""

PCM = {"type": "audio/pcm", "rate": RATE_HZ}


def updated(holds: ConversationSettings, asked: SessionSettings) -> ConversationSettings:
    """With what a client asks for. Raises `InvalidArgument` for what cannot be."""
    if asked.type != "realtime":
        raise InvalidArgument(
            f"session.type: {asked.type!r} is not served; there is 'realtime'",
            field="session.type",
        )
    changed = _with(holds, asked.output_modalities, asked.max_output_tokens, "session")
    if asked.audio is not None:
        changed = _with_audio(changed, asked.audio, "session")
        if asked.audio.input is not None and asked.audio.input.turn_detection is not UNSET:
            changed = replace(changed, turns=read_turns(asked.audio.input.turn_detection))
    if asked.instructions is not UNSET:
        changed = replace(changed, instructions=asked.instructions or "")
    return changed


def for_response(holds: ConversationSettings, asked: ResponseSettings) -> ConversationSettings:
    """With what one response asks for. Raises `InvalidArgument` for what cannot be."""
    changed = _with(holds, asked.output_modalities, asked.max_output_tokens, "response")
    if asked.audio is not None:
        changed = _with_audio(changed, asked.audio, "response")
    if asked.instructions is not None:
        changed = replace(changed, instructions=asked.instructions)
    return changed


def session_json(holds: ConversationSettings, session_id: str) -> dict[str, Any]:
    """The session as `session.created` and `session.updated` tell it."""
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": holds.model,
        "output_modalities": modalities_json(holds),
        "instructions": holds.instructions,
        "audio": {
            "input": {
                "format": PCM,
                "noise_reduction": None,
                "transcription": None,
                "turn_detection": turns_json(holds.turns),
            },
            "output": {"format": PCM, "voice": holds.voice, "speed": 1.0},
        },
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": max_tokens_json(holds),
        "tracing": None,
    }


def modalities_json(holds: ConversationSettings) -> list[str]:
    """`output_modalities`: exactly one."""
    return ["audio" if holds.spoken else "text"]


def max_tokens_json(holds: ConversationSettings) -> int | str:
    """The limit as the API tells it."""
    return "inf" if holds.max_output_tokens is None else holds.max_output_tokens


def _with(
    holds: ConversationSettings,
    modalities: Sequence[str] | None,
    limit: int | str | None,
    where: str,
) -> ConversationSettings:
    changed = holds
    if modalities is not None:
        field = f"{where}.output_modalities"
        if list(modalities) not in (["text"], ["audio"]):
            raise InvalidArgument(f"{field}: give ['text'] or ['audio']", field=field)
        changed = replace(changed, spoken=modalities[0] == "audio")
    if limit is not None:
        field = f"{where}.max_output_tokens"
        if limit == "inf":
            return replace(changed, max_output_tokens=None)
        if isinstance(limit, str) or limit < 1:
            raise InvalidArgument(f"{field}: give a number from 1, or 'inf'", field=field)
        changed = replace(changed, max_output_tokens=limit)
    return changed


def _with_audio(
    holds: ConversationSettings, asked: AudioSettings, where: str
) -> ConversationSettings:
    ways: Mapping[str, SampleFormat | None] = {
        "input": asked.input.format if asked.input else None,
        "output": asked.output.format if asked.output else None,
    }
    for way, given in ways.items():
        field = f"{where}.audio.{way}.format"
        if given is not None and (given.type, given.rate or RATE_HZ) != ("audio/pcm", RATE_HZ):
            raise InvalidArgument(
                f"{field}: {given.type} is not served; give audio/pcm of {RATE_HZ} Hz",
                field=field,
            )
    if asked.output is None or asked.output.voice is None:
        return holds
    return holds.with_voice(voice_name(asked.output.voice))
