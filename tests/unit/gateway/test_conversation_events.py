"""Every event of a conversation has a form at each endpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from antiphon.errors import Unavailable
from antiphon.values import live_conversation as talk
from antiphon.values.answer import FunctionCall, Usage
from antiphon_gateway.conversations.events import (
    ConversationEvent,
    ItemDone,
    ItemStarted,
    Response,
    ResponseSamples,
)
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.grpc.converse.writing import write_event
from antiphon_gateway.endpoints.realtime.server_events import ServerEvents
from tests.contract.realtime_client import TYPES

MADE_AS: dict[type[Any], type[Any]] = {
    talk.ResponseItemStarted: ItemStarted,
    talk.ResponseItemDone: ItemDone,
    talk.ResponseAudioDelta: ResponseSamples,
}
"""Events that the gateway has in another class until an endpoint writes them."""

SETTINGS = ConversationSettings(
    model="m", voices=("v",), output_rate_hz=24_000, voice="v", stopping=True
)
SPOKEN = talk.Item("assistant", (talk.SpokenPart("Hi", 0.5),), "item")
HEARD = talk.Item("user", ("Hi",), "said")
REPLY = Response("r", "completed", settings=SETTINGS, items=(SPOKEN,), usage=Usage(1, 2))
ERROR = Unavailable("the stage was lost")
STARTED = ItemStarted("r", "item", response=REPLY, item=SPOKEN)
EVENTS = (
    talk.ConversationOpened("m", 24_000, ("v",), SETTINGS),
    talk.SettingsUpdated(SETTINGS),
    talk.CommandFailed(ERROR, "mine"),
    talk.AudioAccepted("said", "before"),
    talk.AudioDropped(),
    talk.SpeechBegan("said", 0.5),
    talk.SpeechEnded("said", 1.5),
    talk.SilencePassed("said", 1.5, 3.5),
    talk.ServerStopping(2.0),
    talk.ItemCreated(HEARD, "before"),
    talk.ItemFetched(HEARD),
    talk.ItemRemoved("said"),
    talk.ItemCut("item", 0.25),
    talk.TranscriptDelta("said", "Hi"),
    talk.TranscriptDone("said", "Hi", Usage(1, 2)),
    talk.TranscriptLost("said", ERROR),
    talk.ResponseStarted(replace(REPLY, status="in_progress", items=(), usage=None)),
    STARTED,
    talk.ResponseTextDelta("r", "item", "Hi"),
    ResponseSamples("r", "item", np.zeros(240, np.float32)),
    talk.ResponseFunctionCallDelta("r", "item", "c", "f", "{"),
    talk.ResponseFunctionCall("r", "item", FunctionCall("c", "f", "{}")),
    ItemDone("r", SPOKEN, response=REPLY),
    talk.ResponseDone(REPLY),
    talk.ConversationSaved(b"token", 3, 2),
)
BY_KIND: dict[type[Any], Any] = {type(each): each for each in EVENTS}


def kinds() -> set[type[Any]]:
    """The classes of all events that a conversation tells an endpoint."""
    unions = [get_args(each) or (each,) for each in get_args(ConversationEvent)]
    return {MADE_AS.get(kind, kind) for union in unions for kind in union}


def test_the_events_here_are_all_that_there_are() -> None:
    assert BY_KIND.keys() == kinds()
    assert len(BY_KIND) == len(EVENTS)


@pytest.mark.parametrize("kind", BY_KIND, ids=lambda kind: kind.__name__)
async def test_realtime_writes_every_event(kind: type[Any]) -> None:
    events = ServerEvents(SETTINGS, 1 << 20)
    await events.of(STARTED)
    told = await events.of(BY_KIND[kind])
    assert told
    for each in told:
        known = TYPES.get(each["type"])
        if known is not None:
            known.model_validate({"event_id": "event", **each}, strict=True)
        else:
            assert each["type"].startswith("antiphon.")


@pytest.mark.parametrize("kind", BY_KIND, ids=lambda kind: kind.__name__)
def test_grpc_writes_every_event(kind: type[Any]) -> None:
    message = write_event(BY_KIND[kind], 1 << 20)
    assert message.WhichOneof("event")
