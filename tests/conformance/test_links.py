"""What links promise whatever the transport: forcing, refusing, restarts, namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import pytest

from antiphon.errors import FailedPrecondition, Internal, ResourceExhausted, Unavailable
from antiphon.transport.payload.framed import FramedSender
from antiphon.transport.payload.registry import attach_best, make_senders
from antiphon.transport.payload.transport import PayloadSender, Placement, WriteMessage
from antiphon.transport.settings import LinkIdentity, LinkSettings
from antiphon.wire.blob import Encoding
from antiphon.wire.frames import LinkMessage
from antiphon_testkit.cut_wire import CutWire
from antiphon_testkit.faulty_transport import FaultySender
from antiphon_testkit.link_rig import (
    LinkConsumer,
    linked,
    marked_chunk,
    producer,
    serving,
)

LONG_S = 120.0
SLAB = 4 << 20


def settings(transport: str, window_s: float = LONG_S) -> LinkSettings:
    return LinkSettings(transport, "cpu", slab_bytes=SLAB, resume_window_s=window_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("shared_memory", "grpc"),
        ("grpc", "shared_memory"),
        pytest.param("nccl", "grpc", id="gloo-grpc"),
    ],
)
async def test_link_is_lost_at_once_when_the_ends_are_set_to_different_transports(
    ours: str, theirs: str
) -> None:
    async with linked(settings(ours), consumer_settings=settings(theirs)) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 10))
        await rig.told.changed.wait_until(lambda: rig.told.lost)
        assert isinstance(rig.told.lost[0], FailedPrecondition)
        assert f"the consumer only accepts {theirs}" in rig.told.lost[0].message


async def test_reason_is_told_when_a_better_transport_is_refused() -> None:
    async with linked(settings("auto"), consumer_settings=settings("grpc")) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 1 << 20))
        await rig.consumer.received.wait_count(1)
        assert rig.link.state.transport == "grpc"
        assert rig.link.state.refused == ("shared_memory: the consumer only accepts grpc",)
        (seen,) = rig.consumer.links.states()
        assert seen.refused == rig.link.state.refused


async def test_both_ends_know_the_stage_and_the_name_of_the_other() -> None:
    async with linked(settings("grpc")) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 10))
        await rig.consumer.received.wait_count(1)
        assert (rig.link.state.peer_role, rig.link.state.peer_name) == ("consumer", "consumer-0")
        (seen,) = rig.consumer.links.states()
        assert (seen.peer_role, seen.peer_name) == ("producer", "producer-0")


async def test_link_is_lost_at_once_when_the_consumer_has_restarted() -> None:
    after = LinkConsumer(settings("auto"), attach_best, boot_id="after")
    async with serving(after) as address, linked(settings("auto")) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 100_000))
        await rig.consumer.received.wait_count(1)
        rig.wire.redirect(address)
        rig.wire.cut()
        await rig.told.changed.wait_until(lambda: rig.told.lost)
        assert isinstance(rig.told.lost[0], Unavailable)
        assert "no longer has the link" in rig.told.lost[0].message
        assert not after.received.count


async def test_link_that_is_meant_for_another_boot_is_refused_at_once_by_type() -> None:
    consumer = LinkConsumer(settings("auto"), attach_best, boot_id="now")
    async with serving(consumer) as address:
        late, told = producer(address, settings("auto", window_s=1000.0), boot_id="before")
        right, _ = producer(address, settings("auto"), boot_id="now")
        late.send_nowait(marked_chunk("late", 0, 100_000))
        right.send_nowait(marked_chunk("right", 0, 100_000))
        await told.changed.wait_until(lambda: told.lost)
        assert isinstance(told.lost[0], Unavailable)
        assert (told.lost[0].stage, list(told.unacknowledged)) == ("consumer", ["late"])
        assert not told.suspended
        await consumer.received.wait_count(1)
        consumer.received.check_complete("right", 1)
        assert len(consumer.opened) == 1
        await right.close()
        await late.close()


async def test_link_is_lost_at_once_when_the_producer_has_restarted() -> None:
    consumer = LinkConsumer(settings("auto"), attach_best, boot_id="stays")
    async with serving(consumer) as address:
        wire = CutWire(address)
        await wire.open()
        before = LinkIdentity("host", "boot-1", "producer", "here:1")
        dying, _ = producer(wire.address, settings("auto"), identity=before)
        dying.send_nowait(marked_chunk("s", 0, 100))
        await consumer.received.wait_count(1)
        await wire.close()
        await consumer.received.changed.wait_until(lambda: consumer.received.suspended)
        assert not consumer.received.lost
        after = LinkIdentity("host", "boot-2", "producer", "here:1")
        link, _ = producer(address, settings("auto"), identity=after)
        link.send_nowait(marked_chunk("s", 1, 100))
        await consumer.received.changed.wait_until(lambda: consumer.received.lost)
        await consumer.received.wait_count(2)
        await link.close()
        await dying.close()


async def test_link_is_lost_when_the_window_ends_and_not_before() -> None:
    async with linked(settings("auto", window_s=0.5)) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 100))
        await rig.consumer.received.wait_count(1)
        started = asyncio.get_running_loop().time()
        await rig.wire.close()
        await rig.told.changed.wait_until(lambda: rig.told.lost)
        assert asyncio.get_running_loop().time() - started >= 0.5
        assert rig.told.suspended
        received = rig.consumer.received
        await received.changed.wait_until(lambda: received.lost)
        assert asyncio.get_running_loop().time() - started >= 0.5


async def test_link_is_lost_and_not_mute_when_a_transport_has_a_bug() -> None:
    async def senders(*_: object) -> NoReturn:
        raise KeyError("bug")

    async with linked(settings("auto"), senders=senders) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 10))
        await rig.told.changed.wait_until(lambda: rig.told.lost)
        assert isinstance(rig.told.lost[0], Internal)
        assert "bug" in rig.told.lost[0].message


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces that reach each other at 10.213.0.1 and .2."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2 for network namespaces")
    tag = uuid.uuid4().hex[:6]
    names = f"ap{tag}a", f"ap{tag}b"
    try:
        for name in names:
            _ip("netns", "add", name)
        ends = [("name", name, "netns", name) for name in names]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for index, name in enumerate(names, 1):
            _ip("-n", name, "addr", "add", f"10.213.0.{index}/24", "dev", name)
            _ip("-n", name, "link", "set", name, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)


def test_link_falls_back_to_grpc_when_the_hosts_differ(namespaces: tuple[str, str]) -> None:
    told = _link_between(namespaces[0], namespaces[1], "10.213.0.2")
    assert told["transport"] == "grpc"
    assert [reason.partition(":")[0] for reason in told["refused"]] == ["shared_memory"]
    assert told["counts"]["chunks.grpc"] == 400
    assert not told["lost"]


def test_link_shares_memory_when_the_host_is_one(namespaces: tuple[str, str]) -> None:
    told = _link_between(namespaces[0], namespaces[0], "10.213.0.1")
    assert told["transport"] == "shared_memory"
    assert told["counts"]["chunks.shared_memory"] > 0


def _link_between(here: str, there: str, host: str) -> dict[str, object]:
    """What a producer tells that has sent 100 rounds from one namespace to another."""
    module = [sys.executable, "-m", "antiphon_testkit.link_peer"]
    consumer = subprocess.Popen(
        ["ip", "netns", "exec", there, *module, "--listen", host], stdout=subprocess.PIPE, text=True
    )
    try:
        assert consumer.stdout is not None
        address = consumer.stdout.readline().strip()
        command = ["ip", "netns", "exec", here, *module, "--produce-to", address, "--rounds", "100"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        consumer.kill()
        consumer.communicate()
    told: dict[str, object] = json.loads(done.stdout)
    return told


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


async def test_small_chunks_pass_between_the_frames_of_a_large_one() -> None:
    small = iter(range(10))

    async def senders(
        settings: LinkSettings, address: str, write: WriteMessage
    ) -> tuple[list[PayloadSender], list[str]]:
        async def write_and_more(message: LinkMessage) -> None:
            await write(message)
            if (sequence := next(small, None)) is not None:
                rig.link.send_nowait(marked_chunk("small", sequence, 100))

        return [FramedSender(write_and_more)], []

    async with linked(settings("grpc"), senders=senders) as rig:
        received = rig.consumer.received
        received.hold = True
        rig.link.send_nowait(marked_chunk("large", 0, 64 << 20))
        await received.wait_count(11)
        received.check_complete("large", 1)
        received.check_complete("small", 10)
        assert received.held[-1].session_id == "large"


class HangingSender(FaultySender):
    """A collective of which nothing ever comes."""

    def __init__(self, inner: PayloadSender) -> None:
        super().__init__(inner, random.Random(0), 0.0)
        self.fails = asyncio.Event()

    def place(self, encoding: Encoding) -> Placement:
        return Placement(super().place(encoding).payload, self._hang)

    async def _hang(self) -> None:
        await self.fails.wait()
        await self._leave()


async def test_other_sessions_go_on_while_a_collective_hangs() -> None:
    made: list[HangingSender] = []

    async def senders(
        settings: LinkSettings, address: str, write: WriteMessage
    ) -> tuple[list[PayloadSender], list[str]]:
        senders, failed = await make_senders(settings, address, write)
        made.extend(map(HangingSender, senders))
        return list(made[-len(senders) :]), failed

    async with linked(settings("nccl"), senders=senders) as rig:
        received = rig.consumer.received
        rig.link.send_nowait(marked_chunk("hangs", 0, 2 << 20))
        rig.link.send_nowait(marked_chunk("hangs", 1, 10))
        for sequence, size in enumerate((10, 2 << 20, 100 << 10)):
            rig.link.send_nowait(marked_chunk("other", sequence, size))
        await received.wait_count(3)
        received.check_complete("other", 3)
        assert rig.link.state.counts["fallback.collective_busy"] > 0
        made[0].fails.set()
        await received.wait_count(5)
        received.check_complete("hangs", 2)
        assert rig.link.state.counts["fallback.collective_failed"] > 0


async def test_sessions_go_on_when_another_has_96_mb_waiting_on_grpc() -> None:
    bounded = replace(settings("grpc"), session_bytes=64 << 20)
    async with linked(bounded) as rig:
        rig.link.send_nowait(marked_chunk("small", 0, 8))
        received = rig.consumer.received
        await received.wait_count(1)
        rig.wire.flowing.clear()
        rig.link.send_nowait(marked_chunk("large", 0, 96 << 20))
        for sequence in range(1, 78):
            rig.link.send_nowait(marked_chunk("small", sequence, 8))
        with pytest.raises(ResourceExhausted, match="of the session"):
            rig.link.send_nowait(marked_chunk("large", 1, 96 << 20))
        rig.wire.flowing.set()
        await received.wait_count(79)
        received.check_complete("small", 78)
        received.check_complete("large", 1)


async def test_pieces_of_a_large_session_are_passed_by_another() -> None:
    async with linked(settings("grpc")) as rig:
        received = rig.consumer.received
        received.hold = True
        for sequence in range(16):
            rig.link.send_nowait(marked_chunk("large", sequence, 4 << 20))
        for sequence in range(20):
            rig.link.send_nowait(marked_chunk("small", sequence, 100))
        await received.wait_count(36)
        received.check_complete("large", 16)
        received.check_complete("small", 20)
        order = [chunk.session_id for chunk in received.held]
        assert order[:20] == ["small"] * 20
