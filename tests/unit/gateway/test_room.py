from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from antiphon.deployment.schema import GatewayConfig
from gateway.doors.http.body import FREE_BYTES, read_body
from gateway.doors.http.json_body import WholeBody
from gateway.doors.http.room import SILENT_S, NoRoom, Room, RoomShare


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def room(clock: Clock) -> Room:
    return Room(10, "bodies", "max_bodies", clock=clock)


class Client:
    """Holds something in a room, and notes when it had to give way."""

    def __init__(self, room: Room, stack: ExitStack) -> None:
        self.gave_way = False
        self.holding: RoomShare = stack.enter_context(room.hold(self._note))

    def _note(self) -> None:
        self.gave_way = True


def test_room_is_free_again_when_holdings_shrink_or_end(room: Room) -> None:
    with ExitStack() as stack:
        client = Client(room, stack)
        client.holding.moved(7)
        client.holding.moved(4)
        assert room.held_bytes == 4
    assert room.held_bytes == 0


def test_room_refuses_whom_it_would_overfill_when_all_others_move(room: Room) -> None:
    with ExitStack() as stack:
        one, other = Client(room, stack), Client(room, stack)
        one.holding.moved(6)
        with pytest.raises(NoRoom, match="max_bodies") as caught:
            other.holding.moved(5)
        assert caught.value.retryable
        other.holding.moved(4)
        assert (room.held_bytes, one.gave_way) == (10, False)


def test_the_longest_silent_gives_way_first_and_no_more_than_needed(
    room: Room, clock: Clock
) -> None:
    with ExitStack() as stack:
        eldest, elder, young = (Client(room, stack) for _ in range(3))
        for client in (elder, eldest):
            client.holding.moved(5)
        elder.holding.moved(5)
        clock.now_s += SILENT_S + 0.1
        young.holding.moved(5)
        assert [each.gave_way for each in (eldest, elder, young)] == [True, False, False]
        assert room.held_bytes == 10
        with pytest.raises(NoRoom):
            eldest.holding.moved(6)
        young.holding.moved(10)
        assert elder.gave_way
        assert room.held_bytes == 10
    assert room.held_bytes == 0


def test_who_has_done_its_part_does_not_give_way(room: Room, clock: Clock) -> None:
    with ExitStack() as stack:
        done, silent, new = (Client(room, stack) for _ in range(3))
        done.holding.moved(4)
        done.holding.keep()
        silent.holding.moved(4)
        clock.now_s += SILENT_S + 0.1
        new.holding.moved(6)
        assert (done.gave_way, silent.gave_way) == (False, True)
        with pytest.raises(NoRoom):
            new.holding.moved(7)
        room.clear()
        assert (done.gave_way, new.gave_way) == (False, True)
        assert room.held_bytes == 4


async def test_a_body_that_has_come_whole_does_not_give_way(room: Room, clock: Clock) -> None:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b" " * (FREE_BYTES + 6), "more_body": False}

    with ExitStack() as stack:
        done, new = Client(room, stack), Client(room, stack)
        unbounded = asyncio.timeout(None)
        body = WholeBody(GatewayConfig().max_body_values)
        await read_body({"headers": []}, receive, GatewayConfig(), done.holding, unbounded, body)
        clock.now_s += SILENT_S + 0.1
        with pytest.raises(NoRoom):
            new.holding.moved(5)
        assert (done.gave_way, room.held_bytes) == (False, 6)
