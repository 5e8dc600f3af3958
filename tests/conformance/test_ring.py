"""What links promise when their chunks go through a ring in shared memory."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.transport.ring import offer as ring_offer
from antiphon.transport.ring.messages import RING_BYTES, RingWriter
from antiphon.transport.settings import LinkSettings
from antiphon_testkit.check_transport import check_nothing_is_left
from antiphon_testkit.link_rig import Rig, linked, marked_chunk, producer

KIB = 1 << 10


def settings(*, ring: bool = True, window_s: float = 120.0) -> LinkSettings:
    return LinkSettings("auto", "cpu", slab_bytes=4 << 20, resume_window_s=window_s, ring=ring)


class RecordedRing(RingWriter):
    """A ring that may damage its next message as soon as it has written it."""

    damages = False

    def write(self, message: bytes, after: int) -> bool:
        written = super().write(message, after)
        if self.damages:
            self.damages = False
            with mmap.mmap(self.fds[0], RING_BYTES) as memory:
                memory[memory.find(message) + len(message) // 2] ^= 1
        return written


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[RecordedRing]:
    """All rings that are created, in order."""
    made: list[RecordedRing] = []

    def make() -> RecordedRing:
        made.append(RecordedRing())
        return made[-1]

    monkeypatch.setattr(ring_offer, "RingWriter", make)
    return made


@asynccontextmanager
async def warm(ours: LinkSettings, theirs: LinkSettings | None = None) -> AsyncIterator[Rig]:
    """A link that has received its first chunk."""
    async with linked(ours, consumer_settings=theirs) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 100))
        await rig.consumer.received.wait_count(1)
        yield rig
    await check_nothing_is_left()


async def send(rig: Rig, first: int, end: int, size: int = 1000) -> None:
    """Send chunks as separate messages, until all have been received."""
    for sequence in range(first, end):
        rig.link.send_nowait(marked_chunk("s", sequence, size))
        await rig.consumer.received.wait_count(sequence + 1)


def carried(rig: Rig) -> dict[str, int]:
    counts = rig.link.state.counts
    return {name: counts[f"carried.{name}"] for name in ("ring", "stream")}


async def test_chunks_go_through_the_ring_and_the_hello_on_the_stream() -> None:
    async with warm(settings()) as rig:
        await send(rig, 1, 20)
        rig.consumer.received.check_complete("s", 20)
        assert carried(rig) == {"ring": 20, "stream": 1}


@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True), (False, False)])
async def test_chunks_go_on_the_stream_when_an_end_does_not_use_the_ring(
    ours: bool, theirs: bool
) -> None:
    async with warm(settings(ring=ours), settings(ring=theirs)) as rig:
        await send(rig, 1, 5)
        rig.consumer.received.check_complete("s", 5)
        assert carried(rig) == {"ring": 0, "stream": 6}


async def test_chunks_go_on_the_stream_when_the_ring_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "eventfd", fail)
    async with warm(settings()) as rig:
        await send(rig, 1, 5)
        assert carried(rig) == {"ring": 0, "stream": 6}


async def test_chunks_go_on_the_stream_when_the_ring_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise ConnectionRefusedError("another network namespace")

    monkeypatch.setattr(ring_offer, "receive_fds", fail)
    async with warm(settings()) as rig:
        await send(rig, 1, 5)
        assert carried(rig) == {"ring": 0, "stream": 6}


async def test_order_is_kept_across_carriers_for_all_sizes() -> None:
    chance = random.Random(3)
    async with linked(settings()) as rig:
        for sequence in range(300):
            size = chance.choice((0, 10, 3000, 15 * KIB, 40 * KIB, 300 * KIB, 3 << 20))
            rig.link.send_nowait(marked_chunk("s", sequence, size))
            if chance.random() < 0.7:
                await asyncio.sleep(0)
        await rig.consumer.received.wait_count(300)
        rig.consumer.received.check_complete("s", 300)
        assert min(carried(rig).values()) > 1
        assert not rig.told.suspended


async def test_frames_arrive_before_their_chunk_when_the_slab_is_full() -> None:
    async with warm(settings()) as rig:
        rig.consumer.received.hold = True
        for sequence in range(1, 13):
            rig.link.send_nowait(marked_chunk("s", sequence, 1 << 20))
            rig.link.send_nowait(marked_chunk("other", sequence - 1, 10))
            await asyncio.sleep(0)
        await rig.consumer.received.wait_count(25)
        rig.consumer.received.check_complete("s", 13)
        rig.consumer.received.check_complete("other", 12)
        assert rig.link.state.counts["fallback.slab_full"]
        assert not rig.told.suspended
        rig.consumer.received.held.clear()


async def test_link_resumes_on_the_stream_when_a_message_is_damaged(
    rings: list[RecordedRing],
) -> None:
    async with warm(settings()) as rig:
        await send(rig, 1, 5)
        rings[0].damages = True
        await send(rig, 5, 20)
        rig.consumer.received.check_complete("s", 20)
        assert rig.told.suspended == 1
        (state,) = rig.consumer.links.states()
        assert state.counts["damaged"] == 1
        assert carried(rig)["ring"] == 6
        assert not rig.told.lost


async def test_ring_is_not_used_again_after_its_counter_was_damaged(
    rings: list[RecordedRing],
) -> None:
    async with warm(settings()) as rig:
        await send(rig, 1, 5)
        os.eventfd_write(rings[0].fds[1], 3)
        await rig.told.changed.wait_until(lambda: rig.told.suspended)
        before = carried(rig)["ring"]
        await send(rig, 5, 12)
        rig.consumer.received.check_complete("s", 12)
        assert carried(rig)["ring"] == before
        assert len(rings) == 2


async def test_producer_leaves_a_ring_whose_space_was_damaged(rings: list[RecordedRing]) -> None:
    async with warm(settings()) as rig:
        os.eventfd_write(rings[0].fds[2], 2 * RING_BYTES)
        await send(rig, 1, 400, size=2000)
        rig.consumer.received.check_complete("s", 400)
        assert min(carried(rig).values()) > 100
        assert not rig.told.suspended


@pytest.mark.parametrize("counter", [1, 2])
async def test_link_works_when_a_counter_has_been_made_blocking(
    rings: list[RecordedRing], counter: int
) -> None:
    async with warm(settings()) as rig:
        await send(rig, 1, 5)
        os.set_blocking(rings[0].fds[counter], True)
        await send(rig, 5, 20)
        rig.consumer.received.check_complete("s", 20)
        assert carried(rig)["stream"] > 1
        assert not rig.told.lost


async def test_ring_is_not_used_again_after_its_reader_could_not_free_space(
    rings: list[RecordedRing],
) -> None:
    async with warm(settings()) as rig:
        await send(rig, 1, 5)
        os.eventfd_read(rings[0].fds[2])
        os.eventfd_write(rings[0].fds[2], (1 << 64) - 2)
        rig.link.send_nowait(marked_chunk("s", 5, 1000))
        await rig.told.changed.wait_until(lambda: rig.told.suspended)
        before = carried(rig)["ring"]
        await send(rig, 6, 12)
        rig.consumer.received.check_complete("s", 12)
        assert carried(rig)["ring"] == before
        assert len(rings) == 2


async def test_ring_is_used_again_after_the_connection_was_cut(rings: list[RecordedRing]) -> None:
    async with warm(settings()) as rig:
        sequence = 1
        for cuts in range(4):
            for _ in range(50):
                rig.link.send_nowait(marked_chunk("s", sequence, 700))
                sequence += 1
                await asyncio.sleep(0)
            rig.wire.cut()
            await rig.told.changed.wait_until(lambda cuts=cuts: rig.told.suspended > cuts)
            # This one can only arrive on the next connection, which is cut in the next round.
            rig.link.send_nowait(marked_chunk("s", sequence, 700))
            sequence += 1
            await rig.consumer.received.wait_count(sequence)
        before = carried(rig)["ring"]
        await send(rig, sequence, sequence + 5)
        rig.consumer.received.check_complete("s", sequence + 5)
        assert carried(rig)["ring"] == before + 5
        assert len(rings) >= 5


async def test_chunks_go_on_the_stream_while_the_consumer_stands_still() -> None:
    peer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "antiphon_testkit.link_peer"), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert peer.stdout is not None
        address = (await peer.stdout.readline()).decode().strip()
        link, told = producer(address, settings())
        link.send_nowait(marked_chunk("first", 0, 100))
        await told.changed.wait_until(lambda: told.settled)
        peer.send_signal(signal.SIGSTOP)
        for sequence in range(2 * RING_BYTES // 1000):
            link.send_nowait(marked_chunk("s", sequence, 1000))
            await asyncio.sleep(0)
        counts = link.state.counts
        assert counts["carried.ring"] > 100
        assert counts["carried.stream"] > 1
        peer.send_signal(signal.SIGCONT)
        await told.changed.wait_until(lambda: "s" in told.settled)
        assert (told.suspended, told.lost) == (0, [])
        await link.close()
    finally:
        peer.kill()
        await peer.wait()
    await check_nothing_is_left()
