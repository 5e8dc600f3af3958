"""Stages that fail in the middle of an answer, and what its client gets of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from antiphon.errors import (
    AntiphonError,
    Unavailable,
)
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import (
    AudioProduced,
    Event,
    SegmentFinished,
    SegmentStarted,
    TextProduced,
)
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    TALKER,
    TEXTS,
    THINKER,
    USUAL,
    FakeStage,
    Script,
    Session,
    samples_of,
)
from tests.contract.replicated_stages import Replicas

ORDER = Order(messages=(ConversationMessage("user", (TextPart("Hi"),)),))
LOST = Unavailable("the engine is gone")


async def begin(session: Session) -> None:
    """The beginning of what the stage usually makes."""
    await session.opened()
    if session.role == THINKER:
        await session.text(TEXTS[0])
    if session.role == CODE2WAV:
        await session.audio(FRAMES[0], 0)


class Failing:
    """A script: so many sessions make a beginning and wait until `now` is set; then their stage
    fails. Those after them are answered."""

    def __init__(self, role: str, error: AntiphonError = LOST, times: int = 1) -> None:
        self.now = asyncio.Event()
        self.left = times
        self._role = role
        self._error = error

    async def __call__(self, session: Session) -> None:
        if not self.left:
            await USUAL[self._role](session)
            return
        self.left -= 1
        await begin(session)
        await self.now.wait()
        await session.error(self._error)


def failing(role: str, script: Script) -> Callable[[dict[str, list[FakeStage]]], None]:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[role]:
            fake.script = script

    return prepare


async def answered(
    replicas: Replicas, on_event: Callable[[list[Event]], None] = lambda events: None
) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(120), replicas.gateway.calls.answer(ORDER) as segment:
        async for event in segment:
            events.append(event)
            on_event(events)
    return events


def check_whole(events: list[Event]) -> None:
    texts = [each.text for each in events if isinstance(each, TextProduced)]
    audio = [each.samples for each in events if isinstance(each, AudioProduced)]
    assert "".join(texts) == "".join(TEXTS)
    np.testing.assert_array_equal(np.concatenate(audio), samples_of(sum(FRAMES), 0))
    assert [type(each) for each in events].count(SegmentStarted) == 1
    assert isinstance(events[-1], SegmentFinished)
    assert events[-1].usage.completion_audio_frames == sum(FRAMES)


def told_by(role: str, events: list[Event]) -> bool:
    """Whether the client has what a failing replica of that stage has made."""
    kinds = {type(each) for each in events}
    return role == TALKER or {THINKER: TextProduced, CODE2WAV: AudioProduced}[role] in kinds
