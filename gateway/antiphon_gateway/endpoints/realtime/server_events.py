"""Converts a conversation's events to the realtime API's format.

Simple events are converted using a table, while item and response events are converted by
functions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import pybase64

from antiphon.values.answer import FunctionCall, Usage
from antiphon.values.live_conversation import (
    AudioAccepted,
    AudioDropped,
    CommandFailed,
    ConversationOpened,
    ConversationSaved,
    HeldSettings,
    ItemCreated,
    ItemCut,
    ItemFetched,
    ItemRemoved,
    ResponseDone,
    ResponseFunctionCall,
    ResponseFunctionCallDelta,
    ResponseStarted,
    ResponseTextDelta,
    ServerStopping,
    SettingsUpdated,
    SilencePassed,
    SpeechBegan,
    SpeechEnded,
    SpokenPart,
    TranscriptDelta,
    TranscriptDone,
    TranscriptLost,
)
from antiphon_gateway.conversations.events import (
    ConversationEvent,
    ItemDone,
    ItemStarted,
    ResponseSamples,
    own_response,
)
from antiphon_gateway.conversations.items import item_bytes
from antiphon_gateway.conversations.settings import ConversationSettings, own_settings
from antiphon_gateway.endpoints.http.transcription_usage import transcription_usage
from antiphon_gateway.endpoints.realtime.errors import error_details, error_json
from antiphon_gateway.endpoints.realtime.item_json import item_json, part_json
from antiphon_gateway.endpoints.realtime.response_json import response_json
from antiphon_gateway.endpoints.realtime.settings import session_json
from antiphon_gateway.endpoints.realtime.timeline_json import timeline_json
from antiphon_gateway.media.audio_out import to_base64
from antiphon_gateway.media.live_audio import LiveEncoder
from antiphon_gateway.threads import SizedThreads

Json = dict[str, Any]

_THREADS = SizedThreads("items")
_ARGUMENTS = "response.function_call_arguments"
_TRANSCRIPTION = "conversation.item.input_audio_transcription"
_WHOLE = frozenset({"completed", "incomplete"})
"""The statuses with which a response's audio is sent completely. After a cancellation, no more
audio can be sent.
"""

_ITEM = {"item_id": "item_id"}
_RECORDING = _ITEM | {"index": "content_index"}
_CALL = _ITEM | {"response_id": "response_id", "index": "output_index"}
_PLAIN: Mapping[type[Any], tuple[str, Mapping[str, str]]] = {
    AudioDropped: ("input_audio_buffer.cleared", {}),
    SpeechBegan: ("input_audio_buffer.speech_started", _ITEM | {"start_s": "audio_start_ms"}),
    SpeechEnded: ("input_audio_buffer.speech_stopped", _ITEM | {"end_s": "audio_end_ms"}),
    SilencePassed: (
        "input_audio_buffer.timeout_triggered",
        _ITEM | {"start_s": "audio_start_ms", "end_s": "audio_end_ms"},
    ),
    AudioAccepted: (
        "input_audio_buffer.committed",
        _ITEM | {"previous_item_id": "previous_item_id"},
    ),
    ItemRemoved: ("conversation.item.deleted", _ITEM),
    TranscriptDelta: (f"{_TRANSCRIPTION}.delta", _RECORDING | {"text": "delta"}),
    TranscriptDone: (
        f"{_TRANSCRIPTION}.completed",
        _RECORDING | {"text": "transcript", "usage": "usage"},
    ),
    TranscriptLost: (f"{_TRANSCRIPTION}.failed", _RECORDING | {"error": "error"}),
    ResponseFunctionCallDelta: (
        f"{_ARGUMENTS}.delta",
        _CALL | {"call_id": "call_id", "arguments": "delta"},
    ),
    ConversationSaved: (
        "antiphon.conversation.saved",
        {"token": "token", "commands": "commands", "audio_commands": "audio_commands"},
    ),
}
"""Events for which only the type and the field names differ."""


def _usage(usage: Usage) -> Json:
    cost: Json = msgspec.to_builtins(transcription_usage(usage))
    return cost


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "start_s": _ms,
    "end_s": _ms,
    "previous_item_id": lambda item_id: item_id or None,
    "usage": _usage,
    "error": error_details,
    "token": lambda token: pybase64.b64encode(token).decode() or None,
}
"""Fields whose values need to be converted."""


class ServerEvents:
    """Converts events and encodes their audio.

    If the recordings of a retrieved item are larger than `max_retrieved_bytes`, they are left out.
    The IDs of the session and the conversation end with `id_suffix`, which is random by default.
    """

    def __init__(
        self, settings: ConversationSettings, max_retrieved_bytes: int, *, id_suffix: str = ""
    ) -> None:
        self._session_id = f"sess_{id_suffix or uuid.uuid4().hex}"
        self._conversation_id = f"conv_{id_suffix or uuid.uuid4().hex}"
        self._max_retrieved_bytes = max_retrieved_bytes
        self._holds = settings
        # The audio encoders for items that are still being spoken.
        self._encoders: dict[str, LiveEncoder] = {}

    async def of(self, event: ConversationEvent) -> list[Json]:
        """Return the API's events for a conversation event. Recordings are encoded on a separate
        thread.
        """
        if (row := _PLAIN.get(type(event))) is not None:
            kind, named = row
            written = {
                name: _FORMS[field](value) if field in _FORMS else value
                for field, name in named.items()
                for value in (getattr(event, field),)
            }
            return [{"type": kind, **written}]
        if isinstance(event, ItemFetched):
            size = item_bytes(event.item)
            audio = self._holds.input_format if size <= self._max_retrieved_bytes else None
            whole = await _THREADS.run(size, partial(item_json, audio=audio), event.item)
            return [{"type": "conversation.item.retrieved", "item": whole}]
        return self._of(event)

    def _of(self, event: ConversationEvent) -> list[Json]:
        match event:
            case ConversationOpened(settings=settings):
                return [self._session("session.created", settings)]
            case SettingsUpdated(settings):
                return [self._session("session.updated", settings)]
            case CommandFailed(error, event_id):
                return [error_json(error, event_id or None)]
            case ServerStopping(within_s):
                own = {"type": "antiphon.stopping", "within_ms": _ms(within_s)}
                return [own] if self._holds.stopping else []
            case ItemCreated(item, before):
                at = {"previous_item_id": before or None, "item": item_json(item)}
                return [
                    {"type": "conversation.item.added", **at},
                    {"type": "conversation.item.done", **at},
                ]
            case ItemCut(item_id, heard_s):
                cut = {"item_id": item_id, "content_index": 0, "audio_end_ms": _ms(heard_s)}
                return [{"type": "conversation.item.truncated", **cut}]
            case ResponseStarted(response):
                created = response_json(own_response(response), self._conversation_id)
                return [{"type": "response.created", "response": created}]
            case ItemStarted(item=item, response=response):
                if isinstance(item.parts[0], SpokenPart):
                    holds = response.settings
                    made = LiveEncoder(holds.output_format, holds.output_rate_hz)
                    self._encoders[item.id] = made
                return _begun(event)
            case ResponseTextDelta(item_id=item_id, text=text):
                spoken = item_id in self._encoders
                kind = "output_audio_transcript" if spoken else "output_text"
                return [{"type": f"response.{kind}.delta", **_at_part(event), "delta": text}]
            case ResponseSamples(item_id=item_id, samples=samples):
                return _audio(_at_part(event), self._encoders[item_id].add(samples))
            case ResponseFunctionCall(response_id, item_id, call, index):
                at_output = {"response_id": response_id, "output_index": index, "item_id": item_id}
                whole = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
                return [{"type": f"{_ARGUMENTS}.done", **at_output, **whole}]
            case ItemDone(item=item, response=response):
                encoder = self._encoders.pop(item.id, None)
                if encoder is None or response.status not in _WHOLE:
                    return _ended(event)
                at_part = _at_output(event) | {"item_id": item.id, "content_index": 0}
                return [*_audio(at_part, encoder.finish()), *_ended(event)]
            case ResponseDone(response):
                whole = response_json(own_response(response), self._conversation_id)
                done = {"type": "response.done", "response": whole}
                return [done, *timeline_json(own_response(response))]
        raise AssertionError(f"{type(event).__name__} can't be represented in the realtime API")

    def _session(self, kind: str, settings: HeldSettings) -> Json:
        self._holds = own_settings(settings)
        return {"type": kind, "session": session_json(self._holds, self._session_id)}


def _audio(at_part: Json, data: bytes) -> list[Json]:
    if not data:
        return []
    return [{"type": "response.output_audio.delta", **at_part, "delta": to_base64(data)}]


def _begun(event: ItemStarted) -> list[Json]:
    """Return the events for the start of an item and its only part."""
    calls = isinstance(event.item.parts[0], FunctionCall)
    nothing: Json = {"arguments": ""} if calls else {"content": []}
    empty = item_json(event.item, status="in_progress") | nothing
    at_output = _at_output(event)
    events: list[Json] = [{"type": "response.output_item.added", **at_output, "item": empty}]
    if not event.response.out_of_band:
        before = {"previous_item_id": event.previous_item_id or None}
        events.append({"type": "conversation.item.added", **before, "item": empty})
    if calls:
        return events
    at_part = {**at_output, "item_id": event.item.id, "content_index": 0}
    part = part_json(event.item)
    return [*events, {"type": "response.content_part.added", **at_part, "part": part}]


def _ended(event: ItemDone) -> list[Json]:
    """Return the events for the end of a part and its item."""
    item = event.item
    at_output = _at_output(event)
    events = [] if isinstance(item.parts[0], FunctionCall) else _part_ended(event)
    whole = item_json(item)
    events.append({"type": "response.output_item.done", **at_output, "item": whole})
    if not event.response.out_of_band:
        events.append({"type": "conversation.item.done", "item": whole})
    return events


def _part_ended(event: ItemDone) -> list[Json]:
    """Return the events for the end of a message's part."""
    part = part_json(event.item)
    at_output = _at_output(event)
    at_part = {**at_output, "item_id": event.item.id, "content_index": 0}
    events: list[Json] = []
    if part["type"] == "audio":
        done = "response.output_audio_transcript.done"
        events.append({"type": "response.output_audio.done", **at_part})
        events.append({"type": done, **at_part, "transcript": part["transcript"]})
    else:
        events.append({"type": "response.output_text.done", **at_part, "text": part["text"]})
    events.append({"type": "response.content_part.done", **at_part, "part": part})
    return events


def _at_output(event: ItemStarted | ItemDone | ResponseTextDelta | ResponseSamples) -> Json:
    return {"response_id": event.response_id, "output_index": event.index}


def _at_part(event: ResponseTextDelta | ResponseSamples) -> Json:
    return _at_output(event) | {"item_id": event.item_id, "content_index": 0}
