"""The events of `/v1/realtime` for reference pages: the purpose, the fields and an example of each.

The types that read client events state their fields. `ServerEvents` writes the server events, from
one example of each event of a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import numpy as np

from antiphon.errors import InvalidArgument, Unavailable
from antiphon.v1.session_pb2 import SegmentReport
from antiphon.values.answer import FunctionCall, Usage
from antiphon.values.live_conversation import (
    AudioAccepted,
    AudioDropped,
    CommandFailed,
    ConversationOpened,
    ConversationSaved,
    Item,
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
    Response,
    ResponseSamples,
)
from antiphon_gateway.conversations.items import HeardPart
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.http.reference_page import EventReference, ReferenceEvent
from antiphon_gateway.endpoints.realtime.client_events import ClientEvent
from antiphon_gateway.endpoints.realtime.server_events import ServerEvents
from antiphon_gateway.media.pcm_recording import PcmRecording

Json = dict[str, Any]

CLIENT_EXAMPLES: Sequence[Json] = (
    {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "instructions": "Answer in one sentence.",
            "audio": {
                "input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 400}},
                "output": {"voice": "cantor", "format": {"type": "audio/pcm", "rate": 24000}},
            },
        },
    },
    {"type": "input_audio_buffer.append", "audio": "AAABAP//"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {
        "type": "conversation.item.create",
        "item": {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "What is antiphon?"}],
        },
    },
    {"type": "conversation.item.retrieve", "item_id": "item_1"},
    {"type": "conversation.item.delete", "item_id": "item_1"},
    {
        "type": "conversation.item.truncate",
        "item_id": "item_2",
        "content_index": 0,
        "audio_end_ms": 1200,
    },
    {"type": "response.create", "response": {"output_modalities": ["audio"]}},
    {"type": "response.cancel"},
    {"type": "output_audio_buffer.clear"},
)
"""An event of each type."""

_SETTINGS = ConversationSettings(
    model="antiphon-demo",
    voices=("cantor",),
    voice="cantor",
    output_rate_hz=24_000,
    stopping=True,
    timeline=True,
)
_USAGE = Usage(prompt_tokens=12, prompt_audio_tokens=7, completion_tokens=9)
_ASKED = Item("user", ("What is antiphon?",), "item_1")
_RECORDED = Item("user", (HeardPart.of(PcmRecording(bytes(4), 24_000), "Hello."),), "item_1")
_EMPTY = Item("assistant", (SpokenPart(""),), "item_2", complete=False)
_SPOKEN = Item("assistant", (SpokenPart("A server of speech models.", 2.4),), "item_2")
_SILENT = Item("assistant", ("",), "item_4", complete=False)
_WRITTEN = Item("assistant", ("A server of speech models.",), "item_4")
_CALLING = Item("assistant", (FunctionCall("call_1", "time", ""),), "item_3", complete=False)
_CALLED = Item("assistant", (FunctionCall("call_1", "time", '{"zone": "UTC"}'),), "item_3")
_RUNNING = Response(id="resp_1", status="in_progress", settings=_SETTINGS)
_ENDED = Response(
    id="resp_1",
    status="completed",
    items=(_SPOKEN,),
    usage=_USAGE,
    settings=_SETTINGS,
    reports={"language_model": SegmentReport(first_output_s=0.05, last_output_s=0.3, busy_s=0.2)},
)

SERVER_EXAMPLES: Sequence[ConversationEvent] = (
    ConversationOpened("antiphon-demo", 24_000, ("cantor",), _SETTINGS),
    SettingsUpdated(_SETTINGS),
    CommandFailed(InvalidArgument("item_id: there is no item item_9", field="item_id"), "event_7"),
    SpeechBegan("item_1", 0.42),
    SpeechEnded("item_1", 1.9),
    SilencePassed("item_1", 4.0, 9.0),
    AudioAccepted("item_1", "item_0"),
    AudioDropped(),
    ItemCreated(_ASKED, "item_0"),
    ItemFetched(_RECORDED),
    ItemRemoved("item_1"),
    ItemCut("item_2", 1.2),
    TranscriptDelta("item_1", "Hel"),
    TranscriptDone("item_1", "Hello.", _USAGE),
    TranscriptLost("item_1", Unavailable("language_model: the stage was lost")),
    ResponseStarted(_RUNNING),
    ItemStarted("resp_1", "item_2", 0, "item_1", response=_RUNNING, item=_EMPTY),
    ResponseTextDelta("resp_1", "item_2", "A server"),
    ResponseSamples("resp_1", "item_2", np.zeros(4, np.float32)),
    ItemDone("resp_1", _SPOKEN, response=_ENDED),
    ItemStarted("resp_1", "item_4", 0, "item_1", response=_RUNNING, item=_SILENT),
    ResponseTextDelta("resp_1", "item_4", "A server"),
    ItemDone("resp_1", _WRITTEN, response=_ENDED),
    ItemStarted("resp_1", "item_3", 1, "item_2", response=_RUNNING, item=_CALLING),
    ResponseFunctionCallDelta("resp_1", "item_3", "call_1", "time", '{"zone"', 1),
    ResponseFunctionCall("resp_1", "item_3", FunctionCall("call_1", "time", '{"zone": "UTC"}'), 1),
    ItemDone("resp_1", _CALLED, 1, response=_ENDED),
    ResponseDone(_ENDED),
    ServerStopping(30.0),
    ConversationSaved(b"token", 12, 9),
)
"""A conversation event of each type, in a possible order."""


async def event_reference() -> EventReference:
    """Return the client events, the objects in their fields, and the server events in the order of
    a conversation.
    """
    kinds = get_args(ClientEvent)
    _, objects = msgspec.json.schema_components(kinds)
    examples = {each["type"]: each for each in CLIENT_EXAMPLES}
    client = []
    for kind in kinds:
        fields = objects.pop(kind.__name__)
        del fields["properties"]["type"]
        tag = kind.__struct_config__.tag
        client.append(ReferenceEvent(tag, (kind.__doc__ or "").strip(), examples[tag], fields))
    return EventReference(client, objects, await _server_events())


async def _server_events() -> list[ReferenceEvent]:
    events = ServerEvents(_SETTINGS, max_retrieved_bytes=1 << 20)
    written = [made for event in SERVER_EXAMPLES for made in await events.of(event)]
    first: dict[str, Json] = {}
    for made in written:
        first.setdefault(made["type"], made)
    return [ReferenceEvent(kind, "", made) for kind, made in first.items()]
