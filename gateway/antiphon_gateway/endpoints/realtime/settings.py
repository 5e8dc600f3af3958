"""Converts settings to and from the realtime API's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.errors import InvalidArgument, told
from antiphon.values.live_conversation import TimedTurns, TranscriptOptions
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.http.voice import voice_name
from antiphon_gateway.endpoints.realtime.beta_fields import response_of_today, session_of_today
from antiphon_gateway.endpoints.realtime.client_events import (
    AudioSettings,
    ResponseSettings,
    SampleFormat,
    SessionSettings,
    TranscriptionSettings,
)
from antiphon_gateway.endpoints.realtime.no_effect import NULL_IN_SESSION
from antiphon_gateway.endpoints.realtime.own_settings import SESSION, own_json, with_own
from antiphon_gateway.endpoints.realtime.tool_settings import tools_json, with_tools
from antiphon_gateway.endpoints.realtime.turn_settings import read_turns, turns_json
from antiphon_gateway.media.live_audio import LIVE_FORMATS, LiveFormat


def updated(holds: ConversationSettings, asked: SessionSettings) -> ConversationSettings:
    """Return the settings with a client's changes applied. Raises `InvalidArgument` if they are
    invalid.
    """
    if asked.type != "realtime":
        raise InvalidArgument(
            f"session.type: {asked.type!r} is not supported; use 'realtime'",
            field="session.type",
        )
    asked = session_of_today(asked)
    by_voice, every_s = holds.voice_turns, holds.answer_every_s
    changed = _with(holds, asked.output_modalities, asked.max_output_tokens, "session")
    if asked.audio is not None:
        changed = _with_audio(changed, asked.audio, "session")
        if asked.audio.input is not None and asked.audio.input.turn_detection is not UNSET:
            by_voice = read_turns(asked.audio.input.turn_detection)
    changed = with_tools(changed, asked, "session")
    if asked.instructions is not UNSET:
        changed = changed.with_instructions(asked.instructions or "")
    if (own := asked.antiphon) is not None:
        timeline = changed.timeline if own.timeline is None else own.timeline
        stopping = changed.stopping if own.stopping is None else own.stopping
        changed = replace(changed, timeline=timeline, stopping=stopping)
        changed = with_own(changed, own, SESSION)
        if own.answer_every_s is not UNSET:
            every_s = own.answer_every_s
    if every_s is not None and by_voice is not None:
        raise InvalidArgument(
            f"{SESSION}.answer_every_s: can't be combined with turn detection; set "
            "session.audio.input.turn_detection to null, or leave out answer_every_s",
            field=f"{SESSION}.answer_every_s",
        )
    return changed.with_turns(by_voice if every_s is None else TimedTurns(every_s))


def for_response(holds: ConversationSettings, asked: ResponseSettings) -> ConversationSettings:
    """Return the settings with the changes for one response applied. Raises `InvalidArgument` if
    they are invalid.
    """
    asked = response_of_today(asked)
    changed = _with(holds, asked.output_modalities, asked.max_output_tokens, "response")
    if asked.audio is not None:
        changed = _with_audio(changed, asked.audio, "response")
    changed = with_tools(changed, asked, "response")
    if asked.instructions is not None:
        changed = changed.with_instructions(asked.instructions)
    return (
        changed
        if asked.antiphon is None
        else with_own(changed, asked.antiphon, "response.antiphon")
    )


def session_json(holds: ConversationSettings, session_id: str) -> dict[str, Any]:
    """Return the session in the form used in `session.created` and `session.updated`."""
    own = own_json(holds)
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": holds.model,
        "output_modalities": modalities_json(holds),
        "instructions": holds.instructions,
        "audio": {
            "input": {
                "format": format_json(holds.input_format),
                "noise_reduction": None,
                "transcription": _transcription_json(holds),
                "turn_detection": turns_json(holds.voice_turns),
            },
            "output": {
                "format": format_json(holds.output_format),
                "voice": holds.voice,
                "speed": 1.0,
            },
        },
        **tools_json(holds),
        "max_output_tokens": max_tokens_json(holds),
        **{path.removeprefix("session."): None for path in NULL_IN_SESSION},
        "truncation": "disabled",
        # Leave this out if it isn't used, because strict clients of OpenAI's API would reject it.
        **({"antiphon": own} if own else {}),
    }


def modalities_json(holds: ConversationSettings) -> list[str]:
    """Return `output_modalities`, which contains exactly one value."""
    return ["audio" if holds.spoken else "text"]


def max_tokens_json(holds: ConversationSettings) -> int | str:
    """Return the output token limit in the format of the API."""
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
            remedy = (
                ("; to generate images, use /v1/chat/completions") if "image" in modalities else ""
            )
            raise InvalidArgument(f"{field}: must be ['text'] or ['audio']{remedy}", field=field)
        changed = changed.with_spoken(modalities[0] == "audio")
    if limit is not None:
        field = f"{where}.max_output_tokens"
        if limit == "inf":
            return replace(changed, max_output_tokens=None)
        if isinstance(limit, str) or limit < 1:
            raise InvalidArgument(f"{field}: must be a number of at least 1, or 'inf'", field=field)
        changed = replace(changed, max_output_tokens=limit)
    return changed


def _with_audio(
    holds: ConversationSettings, asked: AudioSettings, where: str
) -> ConversationSettings:
    if asked.input is not None and asked.input.format is not None:
        field = f"{where}.audio.input.format"
        holds = replace(holds, input_format=_format(asked.input.format, field))
    if asked.input is not None and asked.input.transcription is not UNSET and holds.hears:
        wish = asked.input.transcription
        wanted = None if wish is None else TranscriptOptions(wish.language or "", wish.prompt or "")
        holds = replace(holds, transcripts=wanted)
    if asked.output is not None and asked.output.format is not None:
        field = f"{where}.audio.output.format"
        holds = replace(holds, output_format=_format(asked.output.format, field))
    if asked.output is None or asked.output.voice is None:
        return holds
    return holds.with_voice(voice_name(asked.output.voice))


def format_json(holds: LiveFormat) -> dict[str, Any]:
    """Return an audio format. For telephony formats, the sample rate is fixed, so it is
    left out.
    """
    rate = {"rate": holds.rate_hz} if holds.companding is None else {}
    return {"type": holds.name, **rate}


def _transcription_json(holds: ConversationSettings) -> dict[str, Any] | None:
    """Return the current transcription settings, which name the served model."""
    wish = holds.transcripts
    if wish is None:
        return None
    told = TranscriptionSettings(holds.model, wish.language or None, wish.prompt)
    held: dict[str, Any] = msgspec.to_builtins(told)
    return held


def _format(given: SampleFormat, field: str) -> LiveFormat:
    wanted = LIVE_FORMATS.get(given.type)
    if wanted is None or (given.rate or wanted.rate_hz) != wanted.rate_hz:
        known = ", ".join(f"{each.name} of {each.rate_hz} Hz" for each in LIVE_FORMATS.values())
        rate = f" of {given.rate} Hz" if given.rate is not None else ""
        raise InvalidArgument(
            f"{field}: {told(given.type)}{rate} is not supported; use one of: {known}", field=field
        )
    return wanted
