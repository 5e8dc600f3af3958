from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from antiphon.deployment.schema import GatewayConfig
from antiphon_gateway.admission.byte_budget import SILENT_S, BudgetExceeded, ByteBudget, ByteLease
from antiphon_gateway.endpoints.http.body import FREE_BYTES, read_body
from antiphon_gateway.endpoints.http.json_body import WholeBody


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def room(clock: Clock) -> ByteBudget:
    return ByteBudget(10, "bodies", "max_bodies", clock=clock)


class Client:
    """Holds something in a room, and notes when it had to give way."""

    def __init__(self, room: ByteBudget, stack: ExitStack) -> None:
        self.evicted = False
        self.holding: ByteLease = stack.enter_context(room.lease(self._note))

    def _note(self) -> None:
        self.evicted = True


def test_room_is_free_again_when_holdings_shrink_or_end(room: ByteBudget) -> None:
    with ExitStack() as stack:
        client = Client(room, stack)
        client.holding.moved(7)
        client.holding.moved(4)
        assert room.held_bytes == 4
    assert room.held_bytes == 0


def test_room_refuses_whom_it_would_overfill_when_all_others_move(room: ByteBudget) -> None:
    with ExitStack() as stack:
        one, other = Client(room, stack), Client(room, stack)
        one.holding.moved(6)
        with pytest.raises(BudgetExceeded, match="max_bodies") as caught:
            other.holding.moved(5)
        assert caught.value.retryable
        other.holding.moved(4)
        assert (room.held_bytes, one.evicted) == (10, False)


def test_the_longest_silent_gives_way_first_and_no_more_than_needed(
    room: ByteBudget, clock: Clock
) -> None:
    with ExitStack() as stack:
        eldest, elder, young = (Client(room, stack) for _ in range(3))
        for client in (elder, eldest):
            client.holding.moved(5)
        elder.holding.moved(5)
        clock.now_s += SILENT_S + 0.1
        young.holding.moved(5)
        assert [each.evicted for each in (eldest, elder, young)] == [True, False, False]
        assert room.held_bytes == 10
        with pytest.raises(BudgetExceeded):
            eldest.holding.moved(6)
        young.holding.moved(10)
        assert elder.evicted
        assert room.held_bytes == 10
    assert room.held_bytes == 0


def test_who_has_done_its_part_does_not_give_way(room: ByteBudget, clock: Clock) -> None:
    with ExitStack() as stack:
        done, silent, new = (Client(room, stack) for _ in range(3))
        done.holding.moved(4)
        done.holding.keep()
        silent.holding.moved(4)
        clock.now_s += SILENT_S + 0.1
        new.holding.moved(6)
        assert (done.evicted, silent.evicted) == (False, True)
        with pytest.raises(BudgetExceeded):
            new.holding.moved(7)
        room.clear()
        assert (done.evicted, new.evicted) == (False, True)
        assert room.held_bytes == 4


async def test_a_body_that_has_come_whole_does_not_give_way(room: ByteBudget, clock: Clock) -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b" " * (FREE_BYTES + 6), "more_body": False}

    with ExitStack() as stack:
        done, new = Client(room, stack), Client(room, stack)
        unbounded = asyncio.timeout(None)
        body = WholeBody(GatewayConfig().limits.max_body_values)
        await read_body({"headers": []}, receive, GatewayConfig(), done.holding, unbounded, body)
        clock.now_s += SILENT_S + 0.1
        with pytest.raises(BudgetExceeded):
            new.holding.moved(5)
        assert (done.evicted, room.held_bytes) == (False, 6)
