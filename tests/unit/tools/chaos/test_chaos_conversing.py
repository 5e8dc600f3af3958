"""Listeners in conversations, with a conversation whose events are written down here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from antiphon.errors import AntiphonError, Internal, InvalidArgument, Unavailable
from antiphon.values.live_conversation import (
    CommandFailed,
    ConversationOpened,
    ConversationReply,
    HeldSettings,
    Item,
    ResponseAudioDelta,
    ResponseDone,
    ResponseTextDelta,
    TalkEvent,
)
from antiphon_tools.chaos.conversing import MOST_LOST, KnownTalk, hear_turns
from antiphon_tools.chaos.heard import Heard

pytestmark = pytest.mark.asyncio(loop_scope="session")

TALK = KnownTalk(("one", "two"), max_text=4, max_frames=4)
AGAIN = ConversationOpened("m", 24_000, (), cast(HeldSettings, None))


class WrittenCall:
    """Tells its events, and notes the commands."""

    def __init__(self, *events: TalkEvent) -> None:
        self._events = iter(events)
        self.commands: list[str] = []

    async def add(self, text: str) -> None:
        self.commands.append(f"add {text}")

    async def respond(self) -> None:
        self.commands.append("respond")

    async def delete(self, item_id: str) -> None:
        self.commands.append(f"delete {item_id}")

    def __aiter__(self) -> WrittenCall:
        return self

    async def __anext__(self) -> TalkEvent:
        for event in self._events:
            return event
        raise StopAsyncIteration


def piece(text: str) -> Sequence[TalkEvent]:
    return (
        ResponseTextDelta("r", "i", text),
        ResponseAudioDelta("r", "i", bytes([len(text), 0])),
    )


def done(status: Any = "completed", error: AntiphonError | None = None) -> TalkEvent:
    item = Item("assistant", (), id="item")
    return ResponseDone(ConversationReply("r", status, items=(item,), error=error))


async def play(pcm16: bytes, heard: Heard) -> None:
    heard.samples.append(np.frombuffer(pcm16, "<i2").astype(np.float32))


async def hear(call: WrittenCall) -> list[Heard]:
    return await hear_turns(cast(Any, call), TALK, play)


def told(turns: list[Heard]) -> list[tuple[str, list[float], bool]]:
    return [(each.text, each.audio.tolist(), each.resumed) for each in turns]


async def test_each_turn_has_its_answer() -> None:
    call = WrittenCall(*piece("a"), done(), *piece("bc"), done("incomplete"))
    assert told(await hear(call)) == [("a", [1.0], False), ("bc", [2.0], False)]
    assert call.commands == ["add one", "respond", "add two", "respond"]


async def test_an_answer_that_was_lost_with_its_gateway_is_deleted_and_heard_anew() -> None:
    lost = (*piece("ab"), AGAIN, done("failed", Unavailable("lost")))
    call = WrittenCall(*piece("a"), done(), *lost, *piece("abc"), done())
    turns = await hear(call)
    assert told(turns) == [("a", [1.0], False), ("abc", [3.0], True)]
    assert call.commands[2:] == ["add two", "respond", "delete item", "respond"]
    often = WrittenCall(*(lost * MOST_LOST))
    (turn,) = await hear(often)
    assert isinstance(turn.error, Unavailable)
    assert often.commands.count("respond") == MOST_LOST


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([done("failed", Internal("broken"))], Internal),
        ([CommandFailed(InvalidArgument("no"))], InvalidArgument),
        ([], Unavailable),
    ],
)
async def test_any_other_failure_is_the_answers_and_ends_the_conversation(
    events: list[TalkEvent], kind: type[AntiphonError]
) -> None:
    call = WrittenCall(*piece("a"), *events)
    (turn,) = await hear(call)
    assert isinstance(turn.error, kind)
    assert turn.text == "a"
    assert "add two" not in call.commands
