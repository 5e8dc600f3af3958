"""The public conformance suite, which defines what every transport must do.

Each check receives a `Subject`, links two ends over real gRPC, and raises `AssertionError` if the
transport fails the check:

    >>> for check in CHECKS:
    ...     await check(Subject(name, settings))
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.errors import ResourceExhausted
from antiphon.transport.payload.registry import Attach, MakeSenders, attach_best, make_senders
from antiphon.transport.settings import LinkSettings
from antiphon_testkit.link_rig import Rig, check_marks, linked, marked_chunk
from antiphon_testkit.open_files import open_files

KIB, MIB = 1 << 10, 1 << 20
SIZES = (
    0, 1, 7, 100, 16 * KIB - 200, 16 * KIB, 64 * KIB, 192 * KIB, MIB - 200, MIB, MIB + 1,
    4 * MIB, 41 * MIB, 100 * MIB,
)  # fmt: skip
SESSIONS = 32
CUTS = 12
CUT_SESSIONS = 3
DAMAGES = 12
GENEROUS_S = 120.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A transport under test. `name` is the name that the link reports for it.

    A `faulty` transport fails at random, so some payloads don't use it. If `at_once` is true,
    payloads are available as soon as they have been placed, so that chunks never overtake them.
    """

    name: str
    settings: LinkSettings
    senders: MakeSenders = make_senders
    attach: Attach = attach_best
    faulty: bool = False
    at_once: bool = False

    def linked(self, **settings: object) -> AbstractAsyncContextManager[Rig]:
        """Return a context manager that creates both ends of a link that uses the transport."""
        chosen = replace(self.settings, **settings)  # type: ignore[arg-type]
        return linked(chosen, senders=self.senders, attach=self.attach)


async def check_order_and_sizes(subject: Subject) -> None:
    """Payloads between 0 B and 100 MB arrive complete, undamaged and in order, using the transport
    itself.
    """
    async with subject.linked() as rig:
        for sequence, size in enumerate(SIZES):
            rig.link.send_nowait(marked_chunk("s", sequence, size))
        await rig.consumer.received.wait_count(len(SIZES))
        rig.consumer.received.check_complete("s", len(SIZES))
        assert rig.link.state.transport == subject.name
        assert rig.link.state.counts[f"chunks.{subject.name}"] > 0
        if not subject.faulty:
            assert not _fallbacks(rig), rig.link.state.counts


async def check_many_sessions(subject: Subject) -> None:
    """Each session's chunks stay in order, regardless of the payload sizes in other sessions."""
    chance = random.Random(1)
    count = 20
    async with subject.linked() as rig:
        for sequence in range(count):
            for session in range(SESSIONS):
                size = chance.choice((0, 50, 3000, 20 * KIB, 200 * KIB))
                rig.link.send_nowait(marked_chunk(f"s{session}", sequence, size))
            await asyncio.sleep(0)
        await rig.consumer.received.wait_count(SESSIONS * count)
        for session in range(SESSIONS):
            rig.consumer.received.check_complete(f"s{session}", count)


async def check_small_passes_large(subject: Subject) -> None:
    """A payload that takes a while delays its own session, whose chunks stay in order, but no other
    session.
    """
    async with subject.linked() as rig:
        received = rig.consumer.received
        received.hold = True
        for sequence, size in enumerate((10, 41 * MIB, 10, 2 * MIB, 0)):
            rig.link.send_nowait(marked_chunk("large", sequence, size))
        rig.link.send_nowait(marked_chunk("small", 0, 10))
        await received.wait_count(6)
        received.check_complete("large", 5)
        received.check_complete("small", 1)
        if not subject.at_once:
            order = [chunk.session_id for chunk in received.held]
            assert order[:2] == ["large", "small"], order


async def check_slow_reader(subject: Subject) -> None:
    """If the reader stops, the amount of waiting data is bounded. Once the reader continues,
    everything arrives.
    """
    async with subject.linked(session_bytes=2 * MIB) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 10))
        await rig.consumer.received.wait_count(1)
        rig.wire.flowing.clear()
        sent = 1
        while True:
            try:
                rig.link.send_nowait(marked_chunk("s", sent, 100 * KIB))
            except ResourceExhausted:
                break
            sent += 1
            assert sent < 1000, "nothing bounds what waits"
            await asyncio.sleep(0)
        rig.wire.flowing.set()
        await rig.consumer.received.wait_count(sent)
        rig.consumer.received.check_complete("s", sent)


async def check_held_views(subject: Subject) -> None:
    """Payloads that the receiver keeps are not modified. They continue to occupy their space, which
    is freed afterwards.
    """
    count = 60
    async with subject.linked(slab_bytes=4 * MIB) as rig:
        received = rig.consumer.received
        received.hold = True
        for sequence in range(count):
            rig.link.send_nowait(marked_chunk("s", sequence, 192 * KIB))
        await received.wait_count(count)
        received.check_complete("s", count)
        for chunk in received.held:
            check_marks(chunk)
        received.hold = False
        received.held.clear()
        # Each payload is only sent after the previous one has arrived, so that its slot is free
        # again. A transport that has failed is renegotiated after a while.
        name = f"chunks.{subject.name}"
        before = rig.link.state.counts[name]
        async with asyncio.timeout(GENEROUS_S):
            while rig.link.state.counts[name] < before + 3:
                rig.link.send_nowait(marked_chunk("s", count, 192 * KIB))
                count += 1
                await received.wait_count(count)
        received.check_complete("s", count)
        received.hold = True
        rig.link.send_nowait(marked_chunk("s", count, 192 * KIB))
        await received.wait_count(count + 1)
    check_marks(received.held.pop())


async def check_cancel_mid_transfer(subject: Subject) -> None:
    """Closing a link during a transfer doesn't leak any resources, and doesn't affect other
    links.
    """
    for turns in (0, 3, 30, 100, 300):
        async with subject.linked() as rig:
            rig.link.send_nowait(marked_chunk("s", 0, 100))
            await rig.consumer.received.wait_count(1)
            rig.link.send_nowait(marked_chunk("s", 1, 16 * MIB))
            for _ in range(turns):
                await asyncio.sleep(0)
            await rig.link.close(flush=False)
            assert not rig.told.lost
            assert not rig.consumer.received.faults
        await check_nothing_is_left()


async def check_cut_wire(subject: Subject) -> None:
    """If the connection is cut at random moments, the link recovers. No chunk is lost, and no chunk
    arrives twice.
    """
    chance = random.Random(7)
    count = 600
    async with subject.linked(resume_window_s=20.0) as rig:
        received = rig.consumer.received
        moments = sorted(chance.sample(range(20, count), CUTS))
        sent = [0] * CUT_SESSIONS
        for number in range(count):
            session = chance.randrange(CUT_SESSIONS)
            size = chance.choice((0, 100, 10 * KIB, 100 * KIB, 2 * MIB))
            rig.link.send_nowait(marked_chunk(f"s{session}", sent[session], size))
            sent[session] += 1
            if number in moments:
                await received.wait_count(number - chance.randrange(20))
                rig.wire.cut()
        await received.wait_count(count)
        for session, chunks in enumerate(sent):
            received.check_complete(f"s{session}", chunks)
        assert rig.link.state.counts["reconnected"] > 0
        assert rig.told.suspended
        assert not rig.told.lost


async def check_damaged_wire(subject: Subject) -> None:
    """If bytes are changed in transit, no chunk is lost, duplicated or altered."""
    chance = random.Random(11)
    # Chunks that go through a ring aren't transmitted at all.
    async with subject.linked(resume_window_s=60.0, answer_within_s=1.0, ring=False) as rig:
        received = rig.consumer.received
        sent = [0] * CUT_SESSIONS
        # Chunks that leave at the same time are transmitted in few pieces, so some of the damage
        # only happens in the next round.
        rounds = 0
        while rounds < DAMAGES or rig.wire.damaged <= DAMAGES // 2:
            rounds += 1
            rig.wire.damage(chance, passing=chance.randrange(4))
            for _ in range(5):
                session = chance.randrange(CUT_SESSIONS)
                size = chance.choice((0, 100, 10 * KIB, 100 * KIB, 2 * MIB))
                rig.link.send_nowait(marked_chunk(f"s{session}", sent[session], size))
                sent[session] += 1
                await asyncio.sleep(0)
            await received.wait_count(sum(sent))
        for session, chunks in enumerate(sent):
            received.check_complete(f"s{session}", chunks)
        assert rig.link.state.counts["reconnected"] > 0
        assert not rig.told.lost


async def check_nothing_is_left() -> None:
    """After a short time, this process has no slab mapped or open, and no slab has a name."""
    left = _slabs_left()
    try:
        async with asyncio.timeout(GENEROUS_S):
            while left:
                await asyncio.sleep(0.02)  # What was cancelled ends on the loop.
                left = _slabs_left()
    except TimeoutError as error:
        raise AssertionError(f"left behind: {left}") from error


def _slabs_left() -> list[str]:
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = (*maps, *open_files(), *os.listdir("/dev/shm"))
    # A directory may have the same name, such as that of a checkout with its libraries.
    return [each for each in found if "antiphon" in each.rpartition("/")[2]]


def _fallbacks(rig: Rig) -> list[str]:
    return [name for name in rig.link.state.counts if name.startswith("fallback.")]


Check = Callable[[Subject], Awaitable[None]]
CHECKS: tuple[Check, ...] = (
    check_order_and_sizes,
    check_many_sessions,
    check_small_passes_large,
    check_slow_reader,
    check_held_views,
    check_cancel_mid_transfer,
    check_cut_wire,
    check_damaged_wire,
)
"""All checks of the suite."""
