"""The consumer processes messages in the order in which they were written, whichever carrier is
faster.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import pytest

from antiphon.transport.link.incoming.carriers import IncomingCarriers
from antiphon.transport.ring import offer as ring_offer
from antiphon.transport.ring.entries import MOST_AT_ONCE, DamagedRing
from antiphon.transport.ring.messages import RingWriter
from antiphon.transport.ring.offer import OfferedRing
from antiphon.v1 import stage_pb2
from antiphon.wire.checksum import checksum_of
from antiphon.wire.frames import CameOnLink, message_to_bytes
from antiphon_testkit.open_files import open_files, opened_since

BOUND_S = 120.0


def batch(number: int) -> stage_pb2.LinkRequest:
    return stage_pb2.LinkRequest(batch=stage_pb2.ChunkBatch(first=number))


class Consumer:
    """The consumer's end. Its stream yields what the test puts into `arriving`."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.handled: list[int] = []
        self.arriving: asyncio.Queue[stage_pb2.LinkRequest] = asyncio.Queue()
        self._chance = chance
        self._changed = asyncio.Event()
        self.carriers = IncomingCarriers(self._stream(), self._handle)
        self.tasks: list[asyncio.Task[None]] = []

    async def attach(self) -> RingWriter:
        offered = OfferedRing()
        writer = offered.accepted(await self.carriers.attach(offered.offer()))
        assert writer is not None
        pumps = self.carriers.read_stream(), self.carriers.read_ring()
        self.tasks = [asyncio.create_task(pump) for pump in pumps]
        return writer

    async def wait_count(self, count: int) -> None:
        async with asyncio.timeout(BOUND_S):
            while len(self.handled) < count:
                self._changed.clear()
                await self._changed.wait()

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.carriers.close()

    async def _stream(self) -> AsyncIterator[CameOnLink]:
        while True:
            yield await self.arriving.get()

    async def _handle(self, message: CameOnLink) -> bool:
        assert isinstance(message, stage_pb2.LinkRequest)
        # A payload that is fetched takes a while. The other carrier must not overtake it.
        for _ in range(self._chance.randrange(3) if self._chance else 0):
            await asyncio.sleep(0)
        if message.HasField("goodbye"):
            return False
        self.handled.append(message.batch.first)
        self._changed.set()
        return True


@pytest.mark.parametrize("seed", range(20))
async def test_messages_are_processed_in_order_whichever_carrier_is_faster(seed: int) -> None:
    chance = random.Random(seed)
    consumer = Consumer(chance)
    writer = await consumer.attach()
    on_the_way: list[stage_pb2.LinkRequest] = []
    sent = 0
    for number in range(200):
        message = batch(number)
        if chance.random() < 0.5 or not writer.write(message_to_bytes(message), sent):
            on_the_way.append(message)
            sent += 1
        while on_the_way and chance.random() < 0.4:
            consumer.arriving.put_nowait(on_the_way.pop(0))
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
    for message in on_the_way:
        consumer.arriving.put_nowait(message)
    await consumer.wait_count(200)
    assert consumer.handled == list(range(200))
    await consumer.stop()
    writer.close()


async def test_entries_before_a_goodbye_are_processed_even_if_it_arrives_first() -> None:
    consumer = Consumer()
    writer = await consumer.attach()
    writer.write(message_to_bytes(batch(0)), 0)
    goodbye = stage_pb2.LinkRequest(goodbye=stage_pb2.LinkGoodbye())
    consumer.arriving.put_nowait(goodbye)
    async with asyncio.timeout(BOUND_S):
        await asyncio.wait(consumer.tasks, return_when=asyncio.FIRST_COMPLETED)
    assert consumer.handled == [0]
    await consumer.stop()
    writer.close()


async def test_reading_ends_with_an_error_when_a_message_is_damaged() -> None:
    consumer = Consumer()
    writer = await consumer.attach()
    writer.write(message_to_bytes(batch(0))[:-1] + b"?", 0)
    async with asyncio.timeout(BOUND_S):
        done, _ = await asyncio.wait(consumer.tasks, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(DamagedRing, match="a message is damaged"):
        done.pop().result()
    await consumer.stop()
    writer.close()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x0a\xff", id="no message of protobuf"),
        pytest.param(b"\xff" * 11, id="a malformed tag"),
        pytest.param(bytes([stage_pb2.LinkRequest.FRAME_FIELD_NUMBER << 3 | 2, 0x80]), id="frame"),
    ],
)
async def test_intact_bytes_that_are_no_message_count_as_a_damaged_ring(body: bytes) -> None:
    consumer = Consumer()
    writer = await consumer.attach()
    writer.write(body + checksum_of(body), 0)
    async with asyncio.timeout(BOUND_S):
        done, _ = await asyncio.wait(consumer.tasks, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(DamagedRing, match="a message is damaged"):
        done.pop().result()
    await consumer.stop()
    writer.close()


async def test_other_tasks_run_while_many_entries_are_processed() -> None:
    consumer = Consumer()
    writer = await consumer.attach()
    count = 20 * MOST_AT_ONCE
    for number in range(count):
        assert writer.write(message_to_bytes(batch(number)), 0)
    seen: list[int] = []
    async with asyncio.timeout(BOUND_S):
        while len(consumer.handled) < count:
            await asyncio.sleep(0)
            seen.append(len(consumer.handled))
    steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    assert max(steps) <= MOST_AT_ONCE
    assert consumer.handled == list(range(count))
    await consumer.stop()
    writer.close()


async def test_ring_with_a_counter_that_is_a_file_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = Consumer()
    before = open_files()
    offered = OfferedRing()
    receive = ring_offer.receive_fds

    def exchange(name: str, secret: bytes, count: int) -> list[int]:
        memory, written, freed = receive(name, secret, count)
        os.close(written)
        return [memory, os.memfd_create("test-file"), freed]

    monkeypatch.setattr(ring_offer, "receive_fds", exchange)
    assert await consumer.carriers.attach(offered.offer()) == b""
    offered.close()
    consumer.carriers.close()
    assert not opened_since(before)


async def test_ring_that_the_event_loop_cannot_watch_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = Consumer()
    before = open_files()
    offered = OfferedRing()
    offer = offered.offer()
    loop = asyncio.get_running_loop()
    watch = loop.add_reader

    def refuse(fd: object, *rest: object) -> None:
        if isinstance(fd, int) and "eventfd" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError("too many watches")
        watch(fd, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "add_reader", refuse)
    assert await consumer.carriers.attach(offer) == b""
    offered.close()
    consumer.carriers.close()
    assert not opened_since(before)
