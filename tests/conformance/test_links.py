"""What links promise whatever the transport: forcing, refusing, restarts, namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import NoReturn

import pytest

from antiphon.errors import FailedPrecondition, Internal, Unavailable
from antiphon.testing.link_rig import (
    CutWire,
    LinkConsumer,
    linked,
    marked_chunk,
    producer,
    serving,
)
from antiphon.transport.negotiate import attach_best
from antiphon.transport.settings import LinkIdentity, LinkSettings

LONG_S = 60.0
SLAB = 4 << 20


def settings(transport: str, window_s: float = LONG_S) -> LinkSettings:
    return LinkSettings(transport, "cpu", slab_bytes=SLAB, resume_window_s=window_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ours", "theirs"), [("shared_memory", "grpc"), ("grpc", "shared_memory"), ("nccl", "grpc")]
)
async def test_link_is_lost_at_once_when_the_ends_are_set_to_different_transports(
    ours: str, theirs: str
) -> None:
    async with linked(settings(ours), consumer_settings=settings(theirs)) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 10))
        await rig.told.changed.wait_until(lambda: rig.told.lost)
        assert isinstance(rig.told.lost[0], FailedPrecondition)
        assert f"the consumer is set to {theirs}" in rig.told.lost[0].message


async def test_reason_is_told_when_a_better_transport_is_refused() -> None:
    async with linked(settings("auto"), consumer_settings=settings("grpc")) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 1 << 20))
        await rig.consumer.received.wait_count(1)
        assert rig.link.state.transport == "grpc"
        assert rig.link.state.refused == ("shared_memory: the consumer is set to grpc",)
        (seen,) = rig.consumer.links.states()
        assert seen.refused == rig.link.state.refused


async def test_link_is_lost_at_once_when_the_consumer_has_restarted() -> None:
    after = LinkConsumer(settings("auto"), attach_best, boot_id="after")
    async with serving(after) as address, linked(settings("auto")) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 100_000))
        await rig.consumer.received.wait_count(1)
        rig.wire.redirect(address)
        rig.wire.cut()
        await rig.told.changed.wait_until(lambda: rig.told.lost)
        assert isinstance(rig.told.lost[0], Unavailable)
        assert "does not know the link" in rig.told.lost[0].message
        assert not after.received.count


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
        await rig.told.changed.wait_until(lambda: rig.told.suspended)
        assert not rig.told.lost
        await rig.told.changed.wait_until(lambda: rig.told.lost)
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
    module = [sys.executable, "-m", "antiphon.testing.link_peer"]
    consumer = subprocess.Popen(
        ["ip", "netns", "exec", there, *module, "--listen", host], stdout=subprocess.PIPE, text=True
    )
    try:
        assert consumer.stdout is not None
        address = consumer.stdout.readline().strip()
        command = ["ip", "netns", "exec", here, *module, "--produce-to", address, "--rounds", "100"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    finally:
        consumer.kill()
        consumer.communicate()
    told: dict[str, object] = json.loads(done.stdout)
    return told


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
