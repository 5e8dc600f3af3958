"""An end confirms soon what it has received, and gives up a call on which nothing is confirmed."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.transport import confirmation_clock
from antiphon.transport.confirmation_clock import ASK_TICKS, STALLED_TICKS, ConfirmationClock
from antiphon.transport.numbered_stream import NumberedStream

HANGS_S = 60.0


class Ends:
    """A stream with its clock, which ticks with every turn of the loop."""

    def __init__(self) -> None:
        self.stream: NumberedStream[str] = NumberedStream()
        self.waits = False
        self.due, self.stalled = asyncio.Event(), asyncio.Event()
        self.asked = 0
        self.clock = ConfirmationClock(self.stream, self, asking=self)

    def confirm(self) -> None:
        self.due.set()

    def ask(self) -> None:
        self.asked += 1

    def give_call_up(self) -> None:
        self.stalled.set()

    async def turns(self, count: int) -> None:
        """Let the loop turn more often than the clock ticks."""
        for _ in range(2 * count):
            await asyncio.sleep(0)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    monkeypatch.setattr(confirmation_clock, "TICK_S", 0.0)
    return Ends()


async def test_what_was_received_is_due_when_nothing_else_confirms_it(ends: Ends) -> None:
    ends.stream.arrived(1)
    ends.clock.start()
    await asyncio.wait_for(ends.due.wait(), HANGS_S)
    assert ends.stream.owes_count
    ends.stream.count()
    assert not ends.stream.owes_count
    ends.due.clear()
    await ends.turns(STALLED_TICKS)
    assert not ends.due.is_set()
    assert not ends.stalled.is_set()


async def test_nothing_is_due_while_messages_confirm(ends: Ends) -> None:
    ends.clock.start()
    for _ in range(10):
        ends.stream.arrived(1)
        ends.clock.start()
        ends.stream.count()
        await ends.turns(1)
    assert not ends.due.is_set()


async def test_call_is_stalled_when_the_oldest_message_stays_unconfirmed(ends: Ends) -> None:
    ends.stream.sent("first", 1)
    ends.clock.start()
    await ends.turns(STALLED_TICKS // 4)
    assert not ends.stalled.is_set()
    # What else is sent and received does not help.
    ends.stream.sent("second", 1)
    ends.stream.arrived(1)
    ends.clock.start()
    await asyncio.wait_for(ends.stalled.wait(), HANGS_S)


async def test_call_is_not_stalled_while_messages_are_confirmed(ends: Ends) -> None:
    for number in range(2 * STALLED_TICKS):
        ends.stream.sent("message", 1)
        ends.clock.start()
        await ends.turns(1)
        ends.stream.confirmed(number)
    assert not ends.stalled.is_set()


async def test_stopped_clock_starts_over(ends: Ends) -> None:
    ends.stream.sent("message", 1)
    for _ in range(4):
        ends.clock.start()
        await ends.turns(STALLED_TICKS // 4)
        ends.clock.stop()
    assert not ends.stalled.is_set()
    ends.clock.start()
    await asyncio.wait_for(ends.stalled.wait(), HANGS_S)


async def test_end_that_waits_asks_less_and_less_often(ends: Ends) -> None:
    ends.waits = True
    ends.clock.start()
    await ends.turns(ASK_TICKS // 2)
    assert not ends.asked
    await ends.turns(15 * ASK_TICKS)
    asked = ends.asked
    assert 3 <= asked <= 6
    ends.stream.arrived(1)
    ends.stream.count()
    await ends.turns(2 * ASK_TICKS)
    assert ends.asked > asked


async def test_end_that_does_not_wait_asks_nothing(ends: Ends) -> None:
    ends.stream.sent("message", 1)
    ends.clock.start()
    await asyncio.wait_for(ends.stalled.wait(), HANGS_S)
    assert not ends.asked


async def test_clock_of_an_end_that_waits_for_nothing_stops(ends: Ends) -> None:
    ends.clock.start()
    await ends.turns(4)
    ends.waits = True
    await ends.turns(15 * ASK_TICKS)
    assert not ends.asked
