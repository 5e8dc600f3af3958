from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.transport.link.outgoing import pushes as module
from antiphon.transport.link.outgoing.pushes import Pushes
from antiphon.transport.link.outgoing.send_log import Outgoing
from antiphon.transport.payload.collective import CollectiveFallback
from antiphon.transport.payload.transport import PayloadLost, Placement
from antiphon.v1 import chunk_pb2


class Transfer:
    """A push that ends when it is told to."""

    def __init__(self, size: int = 1) -> None:
        self.chunk = Outgoing(chunk_pb2.Chunk(), None)
        self.ends = asyncio.Event()
        self.lost = False
        self.placement = Placement(chunk_pb2.Payload(size_bytes=size), self._push)

    async def _push(self) -> None:
        await self.ends.wait()
        if self.lost:
            raise PayloadLost(CollectiveFallback.COLLECTIVE_FAILED)


async def ended(changed: asyncio.Event) -> None:
    changed.clear()
    await changed.wait()


async def test_payload_is_told_once_when_its_bytes_have_gone() -> None:
    changed = asyncio.Event()
    pushes, transfer = Pushes(changed), Transfer(7)
    pushes.begin("grpc", transfer.chunk, transfer.placement)
    push = pushes.of(transfer.chunk)
    assert push is not None
    assert pushes.settle(push) is None
    assert pushes.is_busy("grpc")
    assert not pushes.is_busy("gloo")
    transfer.ends.set()
    await ended(changed)
    payload = pushes.settle(push)
    assert payload is not None
    assert payload.size_bytes == 7
    assert pushes.of(transfer.chunk) is None
    assert not pushes.is_busy("grpc")


async def test_settling_raises_when_the_push_has_failed() -> None:
    changed = asyncio.Event()
    pushes, transfer = Pushes(changed), Transfer()
    transfer.lost = True
    pushes.begin("gloo", transfer.chunk, transfer.placement)
    transfer.ends.set()
    await ended(changed)
    push = pushes.of(transfer.chunk)
    assert push is not None
    with pytest.raises(PayloadLost):
        pushes.settle(push)
    assert pushes.of(transfer.chunk) is None


async def test_one_that_is_done_makes_room_when_another_must_go_first() -> None:
    changed = asyncio.Event()
    pushes, first, second = Pushes(changed), Transfer(), Transfer()
    pushes.begin("grpc", first.chunk, first.placement)
    first.ends.set()
    await ended(changed)
    assert not pushes.is_busy("grpc")
    pushes.begin("grpc", second.chunk, second.placement)
    assert pushes.of(first.chunk) is None
    assert pushes.of(second.chunk) is not None
    await pushes.close()
    assert not pushes.is_busy("grpc")


async def test_others_are_told_not_to_wait_when_a_push_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    changed = asyncio.Event()
    pushes, transfer = Pushes(changed), Transfer()
    pushes.begin("gloo", transfer.chunk, transfer.placement)
    assert not pushes.is_stuck("grpc")
    await ended(changed)
    assert pushes.is_stuck("gloo")
    assert pushes.is_busy("gloo")
    await pushes.close()
    assert not pushes.is_stuck("gloo")


async def test_push_that_has_ended_is_not_stuck_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def kept(*arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*arguments))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", kept)
    changed = asyncio.Event()
    pushes, transfer = Pushes(changed), Transfer()
    pushes.begin("gloo", transfer.chunk, transfer.placement)
    assert [each.cancelled() for each in timers] == [False]
    transfer.ends.set()
    await ended(changed)
    push = pushes.of(transfer.chunk)
    assert push is not None
    assert [each.cancelled() for each in timers] == [True]
    assert not push.stuck
