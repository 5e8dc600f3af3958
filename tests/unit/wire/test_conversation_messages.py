"""Events of conversations as messages of `converse.proto`, and back."""

from __future__ import annotations

from typing import get_args

import pytest

from antiphon.errors import DataLoss
from antiphon.v1 import converse_pb2
from antiphon.values import live_conversation as talk
from antiphon.values.answer import FunctionCall, Usage
from antiphon.values.sampling import SamplingRequest
from antiphon.wire.conversation import EVENTS, event_from_proto, event_to_proto

ITEM = talk.Item(
    "assistant",
    (
        "a",
        talk.RecordedPart(b"12", 8000, 1.0, "words"),
        talk.SpokenPart("x", 1.5),
        FunctionCall("1", "f", "{}"),
        talk.CallResultPart("1", "z"),
    ),
    "item",
    complete=False,
)
SETTINGS = talk.HeldSettings(
    "Be brief.",
    False,
    "v",
    {"": SamplingRequest(temperature=0.5)},
    talk.VoiceTurns(idle_timeout_s=2.0),
    talk.TranscriptOptions("en", "names"),
    {"task": "speech", "pace": 1.5, "clip": b""},
)
REPLY = talk.ConversationReply(
    "r", "cancelled", True, {"k": "v"}, (ITEM,), Usage(1, 2, 3, 4, 5, 6, 7), reason="turn_detected"
)


def test_every_event_has_a_row() -> None:
    assert set(EVENTS.values()) == {*get_args(talk.TalkEvent), talk.ConversationSaved}
    assert EVENTS.keys() == set(converse_pb2.ConverseResponse.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    "event",
    [
        talk.ConversationOpened("m", 24_000, ("a", "b"), SETTINGS),
        talk.SettingsUpdated(talk.HeldSettings(turns=talk.TimedTurns(2.0))),
        talk.SettingsUpdated(talk.HeldSettings()),
        talk.AudioDropped(),
        talk.ItemCreated(ITEM, "before"),
        talk.ResponseDone(REPLY),
        talk.ResponseFunctionCall("r", "i", FunctionCall("1", "f", "{}"), 1),
        talk.TranscriptDone("i", "t", Usage(1), 2),
        talk.ConversationSaved(b"t", 3, 2),
    ],
)
def test_an_event_comes_out_as_it_went_in(event: object) -> None:
    data = event_to_proto(event).SerializeToString()
    assert event_from_proto(converse_pb2.ConverseResponse.FromString(data)) == event


def test_a_status_of_a_later_version_is_an_error() -> None:
    message = event_to_proto(talk.ResponseDone(REPLY))
    message.response_ended.response.status = 99  # type: ignore[assignment]
    with pytest.raises(DataLoss, match="unknown status"):
        event_from_proto(message)
