"""The clocks and bounds of a link: each ends what it is for, and nothing later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from dataclasses import replace

import grpc
import pytest

from antiphon.errors import ResourceExhausted, Unavailable
from antiphon.transport import response_log
from antiphon.transport.channel import SERVER_OPTIONS
from antiphon.transport.link.incoming import links as incoming
from antiphon.transport.link.outgoing import link
from antiphon.transport.payload.framed import FramedSender
from antiphon.transport.payload.registry import attach_best
from antiphon.transport.payload.transport import PayloadSender, WriteMessage
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import stage_pb2, stage_pb2_grpc
from antiphon.wire.frames import LinkMessage, add_stage_service
from antiphon_testkit.cut_wire import CutWire
from antiphon_testkit.link_rig import (
    LinkConsumer,
    linked,
    marked_chunk,
    producer,
    serving,
)

WINDOW_S = 2.0
GRPC = LinkSettings("grpc", "cpu", slab_bytes=1 << 20, resume_window_s=WINDOW_S)


async def window_ends() -> None:
    """Until timers that began with the window, or before, have gone off."""
    await asyncio.sleep(WINDOW_S + 0.1)


async def test_link_that_healed_outlives_the_window_of_its_break() -> None:
    async with linked(GRPC) as rig:
        received = rig.consumer.received
        rig.link.send_nowait(marked_chunk("s", 0, 10))
        await received.wait_count(1)
        rig.wire.cut()
        await received.changed.wait_until(lambda: received.suspended)
        rig.link.send_nowait(marked_chunk("s", 1, 10))
        await received.wait_count(2)
        assert rig.link.state.counts["reconnected"] == 1
        await window_ends()
        assert not received.lost
        assert not rig.told.lost
        # A second break has a window of its own.
        rig.wire.cut()
        await received.changed.wait_until(lambda: received.suspended == 2)
        rig.link.send_nowait(marked_chunk("s", 2, 10))
        await received.wait_count(3)
        received.check_complete("s", 3)
        assert not received.lost
        assert not rig.told.lost


async def test_link_is_lost_when_another_boot_comes_and_its_window_does_nothing_more() -> None:
    consumer = LinkConsumer(GRPC, attach_best, boot_id="stays")
    async with serving(consumer) as address:
        wire = CutWire(address)
        await wire.open()
        told = consumer.received
        for boot, target in (("1", wire.address), ("2", address)):
            identity = replace(link_identity(), boot_id=boot)
            made, _ = producer(target, GRPC, identity=identity)
            made.send_nowait(marked_chunk(boot, 0, 10))
            await told.changed.wait_until(lambda boot=boot: told.sequences[boot])
            if boot == "1":
                await wire.close()
                await told.changed.wait_until(lambda: told.suspended)
                first = made
        assert told.lost == 1
        await window_ends()
        assert told.lost == 1
        await made.close()
        await first.close(flush=False)


async def test_stream_of_a_producer_that_another_boot_replaces_is_ended() -> None:
    consumer = LinkConsumer(GRPC, attach_best, boot_id="stays")
    async with serving(consumer) as address:
        made, received = {}, consumer.received
        for boot in ("1", "2"):
            identity = replace(link_identity(), boot_id=boot)
            made[boot] = producer(address, GRPC, identity=identity)
            made[boot][0].send_nowait(marked_chunk(boot, 0, 10))
            await received.changed.wait_until(lambda boot=boot: received.sequences[boot])
        assert received.lost
        _, told = made["1"]
        await told.changed.wait_until(lambda: told.suspended, 60.0)
        for each, _ in made.values():
            await each.close(flush=False)


def link_identity() -> link.LinkIdentity:
    return link.LinkIdentity("host", "boot", "producer", "here:1")


class Mute(stage_pb2_grpc.StageServiceServicer):
    """Takes links and never says a word."""

    def __init__(self) -> None:
        self.calls = 0

    async def Link(  # type: ignore[override]
        self,
        requests: AsyncIterable[stage_pb2.LinkRequest],
        context: grpc.aio.ServicerContext[stage_pb2.LinkRequest, stage_pb2.LinkResponse],
    ) -> None:
        """Wait until the caller goes."""
        self.calls += 1
        await asyncio.Event().wait()


async def test_link_is_lost_when_the_peer_never_answers_its_hello(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "FIRST_HANDSHAKE_S", 0.1)
    monkeypatch.setattr(link, "HANDSHAKE_S", 0.1)
    server, mute = grpc.aio.server(options=SERVER_OPTIONS), Mute()
    add_stage_service(mute, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made, told = producer(f"127.0.0.1:{port}", replace(GRPC, resume_window_s=1.0))
    made.send_nowait(marked_chunk("s", 0, 10))
    await told.changed.wait_until(lambda: told.lost, 60.0)
    assert isinstance(told.lost[0], Unavailable)
    assert told.unacknowledged == ("s",)
    assert mute.calls > 1
    await made.close()
    await server.stop(None)


class Deaf(stage_pb2_grpc.StageServiceServicer):
    """Accepts links and reads nothing of what they carry."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()

    async def Link(  # type: ignore[override]
        self,
        requests: AsyncIterable[stage_pb2.LinkRequest],
        context: grpc.aio.ServicerContext[stage_pb2.LinkRequest, stage_pb2.LinkResponse],
    ) -> None:
        """Accept and listen no more."""
        accept = stage_pb2.LinkAccept(transport="grpc", boot_id="b")
        await context.write(stage_pb2.LinkResponse(accept=accept))
        await self.leaves.wait()


async def test_producer_waits_no_longer_than_its_goodbye_when_the_consumer_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "GOODBYE_S", 0.1)
    server, deaf = grpc.aio.server(options=SERVER_OPTIONS), Deaf()
    add_stage_service(deaf, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    under_way = asyncio.Event()

    async def senders(
        settings: LinkSettings, address: str, write: WriteMessage
    ) -> tuple[list[PayloadSender], list[str]]:
        async def write_and_tell(message: LinkMessage) -> None:
            under_way.set()
            await write(message)

        return [FramedSender(write_and_tell)], []

    made, told = producer(f"127.0.0.1:{port}", GRPC, senders)
    made.send_nowait(marked_chunk("s", 0, 32 << 20))
    await under_way.wait()
    async with asyncio.timeout(120):
        await made.close()
    assert not told.lost
    assert made.sessions == {"s"}
    deaf.leaves.set()
    await server.stop(None)


async def test_producer_that_confirms_no_answers_loses_its_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response_log, "MAX_RESPONSES", 10)
    async with linked(GRPC) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 10))
        await rig.consumer.received.wait_count(1)
        (one,) = rig.consumer.opened
        for number in range(11):
            credit = stage_pb2.LinkCredit(session_id="s", edge="e", positions=number)
            one.respond(stage_pb2.LinkResponse(credit=credit))
        await rig.told.changed.wait_until(lambda: rig.told.lost)
        assert isinstance(rig.told.lost[0], ResourceExhausted)
        received = rig.consumer.received
        await received.changed.wait_until(lambda: received.lost)


async def test_acknowledged_sessions_are_told_of() -> None:
    async with linked(GRPC) as rig:
        rig.link.send_nowait(marked_chunk("a", 0, 10))
        rig.link.send_nowait(marked_chunk("b", 0, 3 << 20))
        await rig.told.changed.wait_until(lambda: set(rig.told.settled) == {"a", "b"})
        assert not rig.link.sessions


async def test_links_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MAX_LINKS", 2)
    async with linked(GRPC) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 10))
        second, _ = producer(rig.wire.address, GRPC)
        second.send_nowait(marked_chunk("t", 0, 10))
        await rig.consumer.received.wait_count(2)
        third, told = producer(rig.wire.address, GRPC)
        third.send_nowait(marked_chunk("u", 0, 10))
        await told.changed.wait_until(lambda: told.lost)
        assert isinstance(told.lost[0], ResourceExhausted)
        # The others may come back, and a place is free when one has gone.
        rig.wire.cut()
        rig.link.send_nowait(marked_chunk("s", 1, 10))
        await rig.consumer.received.wait_count(3)
        await second.close()
        received = rig.consumer.received
        await received.changed.wait_until(lambda: received.lost)
        fourth, _ = producer(rig.wire.address, GRPC)
        fourth.send_nowait(marked_chunk("u", 0, 10))
        await received.wait_count(4)
        await fourth.close()


class Babbler(stage_pb2_grpc.StageServiceServicer):
    """Takes chunks, and gives reasons that nobody knows, at length."""

    async def Link(  # type: ignore[override]
        self,
        requests: AsyncIterable[stage_pb2.LinkRequest],
        context: grpc.aio.ServicerContext[stage_pb2.LinkRequest, stage_pb2.LinkResponse],
    ) -> None:
        """Accept, ask for everything again under names of its own, then be content."""
        reasons = ["grpc: no" * 1000] * 100
        accept = stage_pb2.LinkAccept(transport="grpc", boot_id="b", refused=reasons)
        await context.write(stage_pb2.LinkResponse(accept=accept))
        for number in range(100):
            resend = stage_pb2.LinkResend(first=0, reason=f"reason {number}")
            await context.write(stage_pb2.LinkResponse(resend=resend))
        progress = stage_pb2.LinkProgress(chunks=(1 << 64) - 1)
        async for request in requests:
            if request.HasField("batch"):
                await context.write(stage_pb2.LinkResponse(progress=progress))


async def test_producer_keeps_little_of_what_its_consumer_babbles() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_stage_service(Babbler(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made, told = producer(f"127.0.0.1:{port}", GRPC)
    made.send_nowait(marked_chunk("s", 0, 10))
    await told.changed.wait_until(lambda: told.settled)
    counts = made.state.counts
    assert [name for name in counts if name.startswith("fallback.")] == ["fallback.unknown"]
    assert counts["fallback.unknown"] == 100
    assert sum(map(len, made.state.refused)) <= 4000
    await made.close()
    await server.stop(None)
