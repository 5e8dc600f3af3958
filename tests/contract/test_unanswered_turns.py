"""Turns that are heard while they are spoken, and what they keep from others meanwhile."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from antiphon.errors import ResourceExhausted
from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import THINKER, Session, think
from tests.contract.realtime_client import Realtime, realtime
from tests.contract.served_gateway import ServedGateway, serve_gateway
from tests.contract.slotted_stages import QUEUE, WaitingRequests, waiting_requests

pytestmark = pytest.mark.asyncio(loop_scope="session")

TURN = base64.b64encode(np.zeros(12_000, "<i2").tobytes()).decode()
"""Half a second."""
LONG_S = 600.0


class OneSlot:
    """A thinker with one slot, which a turn takes that is spoken, until it is given up."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.given_up = asyncio.Event()
        self._taken = False

    async def __call__(self, session: Session) -> None:
        if self._taken:
            await session.error(ResourceExhausted("all slots are taken"))
            return
        self._taken = True
        if session.segment.live:
            await session.opened()
        while session.segment.live:
            self.heard.set()
            await session.cancelled_segment()
            self._taken = False
            self.given_up.set()
            await session.report(FinishReason.CANCELLED)
            await session.next_segment()
            self._taken = True
        await think(session)
        self._taken = False


@asynccontextmanager
async def one_slot(**settings: Any) -> AsyncIterator[tuple[ServedGateway, OneSlot]]:
    async with serve_gateway(**(QUEUE | {"listen_after_s": 0.2} | settings)) as served:
        thinker = served.fakes[THINKER].script = OneSlot()
        yield served, thinker


@pytest.fixture
def waiting() -> Iterator[WaitingRequests]:
    with waiting_requests() as handler:
        yield handler


async def answer_in_text(client: Realtime) -> None:
    """Have text made, and the client end its turns."""
    audio = {"input": {"turn_detection": None}}
    session = {"type": "realtime", "output_modalities": ["text"], "audio": audio}
    await client.send("session.update", session=session)
    await client.until("session.updated")


async def completed(client: Realtime) -> None:
    assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_turn_that_waits_gives_up_the_slot_that_another_before_it_waits_for(
    waiting: WaitingRequests,
) -> None:
    bounds = {"listen_idle_s": LONG_S, "queue_timeout_s": 30.0}
    async with one_slot(**bounds) as (served, thinker), realtime(served) as first:
        await answer_in_text(first)
        await first.send("input_audio_buffer.append", audio=TURN)
        await thinker.heard.wait()
        async with realtime(served) as second:
            await answer_in_text(second)
            await second.say("Hi")
            await second.send("response.create")
            await waiting.until(1)
            await first.send("input_audio_buffer.commit")
            await first.send("response.create")
            await completed(second)
            await completed(first)


@pytest.mark.parametrize(
    ("told", "idle_s"),
    [("input_audio_buffer.clear", LONG_S), ("input_audio_buffer.commit", 0.2), (None, 0.2)],
    ids=["cleared", "committed", "silent"],
)
async def test_turn_that_nobody_has_answered_gives_up_its_slot(
    told: str | None, idle_s: float
) -> None:
    async with one_slot(listen_idle_s=idle_s) as (served, thinker), realtime(served) as client:
        await answer_in_text(client)
        await client.send("input_audio_buffer.append", audio=TURN)
        await thinker.heard.wait()
        if told is not None:
            await client.send(told)
        await thinker.given_up.wait()
        # The conversation goes on, and a turn that was not dropped is answered.
        if told == "input_audio_buffer.clear":
            await client.say("Hi")
        elif told is None:
            await client.send("input_audio_buffer.commit")
        await client.send("response.create")
        await completed(client)
