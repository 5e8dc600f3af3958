"""What a conversation tells, as the realtime API writes it."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, assert_never

import pybase64

from antiphon_gateway.conversations import events as told
from antiphon_gateway.conversations.events import ConversationEvent
from antiphon_gateway.conversations.items import CallContent, SpokenContent
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.realtime.errors import error_json
from antiphon_gateway.endpoints.realtime.item_json import item_json, part_json
from antiphon_gateway.endpoints.realtime.response_json import response_json
from antiphon_gateway.endpoints.realtime.settings import session_json
from antiphon_gateway.endpoints.realtime.timeline_json import timeline_json
from antiphon_gateway.endpoints.realtime.transcript_json import transcript_json
from antiphon_gateway.media.audio_out import to_base64
from antiphon_gateway.media.live_audio import PCM16, LiveEncoder
from antiphon_gateway.threads import SizedThreads

Json = dict[str, Any]

_THREADS = SizedThreads("items")
_ARGUMENTS = "response.function_call_arguments"
_WHOLE = frozenset({told.ResponseStatus.COMPLETED, told.ResponseStatus.INCOMPLETE})
"""How a response ends of which no audio is held back: after a cancellation none may follow."""


class ServerEvents:
    """Translates; it knows what the API calls the session and the conversation, and encodes audio.

    An item that is retrieved comes without its recordings where these are above
    `max_retrieved_bytes`.
    """

    def __init__(self, max_retrieved_bytes: int) -> None:
        self._session_id = f"sess_{uuid.uuid4().hex}"
        self._conversation_id = f"conv_{uuid.uuid4().hex}"
        self._max_retrieved_bytes = max_retrieved_bytes
        self._input_format = PCM16
        # Of the items that are being spoken.
        self._encoders: dict[str, LiveEncoder] = {}

    async def of(self, event: ConversationEvent) -> list[Json]:
        """The API's events for one of the conversation's; recordings are encoded on a thread."""
        match event:
            case told.ConversationBegun(settings):
                # Of one that goes on, it may be another than the usual.
                self._input_format = settings.input_format
                return [self._session("session.created", settings)]
            case told.SettingsChanged(settings):
                self._input_format = settings.input_format
                return [self._session("session.updated", settings)]
            case told.CommandRefused(error, event_id):
                return [error_json(error, event_id)]
            case told.AudioCleared():
                return [{"type": "input_audio_buffer.cleared"}]
            case told.SpeechStarted(item_id, start_s):
                at = {"item_id": item_id, "audio_start_ms": _ms(start_s)}
                return [{"type": "input_audio_buffer.speech_started", **at}]
            case told.SpeechStopped(item_id, end_s):
                at = {"item_id": item_id, "audio_end_ms": _ms(end_s)}
                return [{"type": "input_audio_buffer.speech_stopped", **at}]
            case told.SilenceTimedOut(item_id, start_s, end_s):
                at = {"item_id": item_id, "audio_start_ms": _ms(start_s)}
                kind = "input_audio_buffer.timeout_triggered"
                return [{"type": kind, **at, "audio_end_ms": _ms(end_s)}]
            case told.AudioCommitted(item_id, before):
                kind = "input_audio_buffer.committed"
                return [{"type": kind, "item_id": item_id, "previous_item_id": before}]
            case told.ItemAdded(item, before):
                at = {"previous_item_id": before, "item": item_json(item)}
                return [
                    {"type": "conversation.item.added", **at},
                    {"type": "conversation.item.done", **at},
                ]
            case told.ItemRetrieved(item):
                fits = item.size_bytes <= self._max_retrieved_bytes
                audio = self._input_format if fits else None
                whole = await _THREADS.run(item.size_bytes, partial(item_json, audio=audio), item)
                return [{"type": "conversation.item.retrieved", "item": whole}]
            case told.GatewayStopping(within_s, settings):
                own = {"type": "antiphon.stopping", "within_ms": _ms(within_s)}
                return [own] if settings.stopping else []
            case told.ItemDeleted(item_id):
                return [{"type": "conversation.item.deleted", "item_id": item_id}]
            case told.ItemTruncated(item_id, index, end_s):
                cut = {"item_id": item_id, "content_index": index}
                kind = "conversation.item.truncated"
                return [{"type": kind, **cut, "audio_end_ms": _ms(end_s)}]
            case told.TranscriptText() | told.TranscriptEnded() | told.TranscriptFailed():
                return [transcript_json(event)]
            case told.ConversationSaved(token, count, audio_count):
                counted = {"commands": count, "audio_commands": audio_count}
                sealed = pybase64.b64encode(token).decode() or None
                return [{"type": "antiphon.conversation.saved", "token": sealed, **counted}]
            case (
                told.ResponseCreated()
                | told.ResponseItemBegun()
                | told.ResponseText()
                | told.ResponseAudio()
                | told.ResponseCallText()
                | told.ResponseCall()
                | told.ResponseItemEnded()
                | told.ResponseEnded()
            ):
                return self._of_response(event)
            case _:
                assert_never(event)

    def _of_response(self, event: told.ResponseEvent) -> list[Json]:
        match event:
            case told.ResponseCreated(response):
                return [{"type": "response.created", "response": self._response(response)}]
            case told.ResponseItemBegun(response, item=item):
                if isinstance(item.contents[0], SpokenContent):
                    holds = response.settings
                    made = LiveEncoder(holds.output_format, holds.output_rate_hz)
                    self._encoders[item.id] = made
                return _begun(event)
            case told.ResponseText(text=text, spoken=spoken):
                kind = "output_audio_transcript" if spoken else "output_text"
                return [{"type": f"response.{kind}.delta", **_at_part(event), "delta": text}]
            case told.ResponseAudio(samples=samples):
                return _audio(_at_part(event), self._encoders[event.item_id].add(samples))
            case told.ResponseCallText(call_id=call_id, arguments=more):
                return [{"type": f"{_ARGUMENTS}.delta", **_at_call(event, call_id), "delta": more}]
            case told.ResponseCall(call=call):
                whole = {"name": call.name, "arguments": call.arguments}
                return [{"type": f"{_ARGUMENTS}.done", **_at_call(event, call.id), **whole}]
            case told.ResponseItemEnded(response, index, item):
                encoder = self._encoders.pop(item.id, None)
                if encoder is None or response.status not in _WHOLE:
                    return _ended(event)
                at_part = {
                    "response_id": response.id,
                    "output_index": index,
                    "item_id": item.id,
                    "content_index": 0,
                }
                return [*_audio(at_part, encoder.finish()), *_ended(event)]
            case told.ResponseEnded(response):
                done = {"type": "response.done", "response": self._response(response)}
                return [done, *timeline_json(response)]
            case _:
                assert_never(event)

    def _session(self, kind: str, settings: ConversationSettings) -> Json:
        return {"type": kind, "session": session_json(settings, self._session_id)}

    def _response(self, response: told.Response) -> Json:
        return response_json(response, self._conversation_id)


def _audio(at_part: Json, data: bytes) -> list[Json]:
    if not data:
        return []
    return [{"type": "response.output_audio.delta", **at_part, "delta": to_base64(data)}]


def _begun(event: told.ResponseItemBegun) -> list[Json]:
    """The item is there, and its one part."""
    calls = isinstance(event.item.contents[0], CallContent)
    nothing: Json = {"arguments": ""} if calls else {"content": []}
    empty = item_json(event.item, status="in_progress") | nothing
    at_output = {"response_id": event.response.id, "output_index": event.index}
    events: list[Json] = [{"type": "response.output_item.added", **at_output, "item": empty}]
    if event.response.in_conversation:
        before = {"previous_item_id": event.previous_item_id}
        events.append({"type": "conversation.item.added", **before, "item": empty})
    if calls:
        return events
    at_part = {**at_output, "item_id": event.item.id, "content_index": 0}
    part = part_json(event.item)
    return [*events, {"type": "response.content_part.added", **at_part, "part": part}]


def _ended(event: told.ResponseItemEnded) -> list[Json]:
    """The ends of the part and of the item."""
    item = event.item
    at_output = {"response_id": event.response.id, "output_index": event.index}
    events = [] if isinstance(item.contents[0], CallContent) else _part_ended(event)
    whole = item_json(item)
    events.append({"type": "response.output_item.done", **at_output, "item": whole})
    if event.response.in_conversation:
        events.append({"type": "conversation.item.done", "item": whole})
    return events


def _part_ended(event: told.ResponseItemEnded) -> list[Json]:
    """The ends of the part of a message."""
    part = part_json(event.item)
    at_output = {"response_id": event.response.id, "output_index": event.index}
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


def _at_call(event: told.ResponseCallText | told.ResponseCall, call_id: str) -> Json:
    return {
        "response_id": event.response_id,
        "output_index": event.index,
        "item_id": event.item_id,
        "call_id": call_id,
    }


def _at_part(event: told.ResponseText | told.ResponseAudio) -> Json:
    return {
        "response_id": event.response_id,
        "output_index": event.index,
        "item_id": event.item_id,
        "content_index": 0,
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
