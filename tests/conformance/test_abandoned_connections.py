"""Connections of a link that were given up do not stay open."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.transport import abandoned_calls
from antiphon.transport.payload.registry import attach_best
from antiphon.transport.settings import LinkSettings
from antiphon_testkit.link_rig import EDGE, LinkConsumer, linked, marked_chunk, producer, serving
from antiphon_testkit.open_files import open_files

SETTINGS = LinkSettings("grpc", "cpu", slab_bytes=1 << 20, resume_window_s=60.0, ring=False)
LONG_S = 120.0
TIMES = 4


def sockets() -> int:
    return sum(each.startswith("socket:") for each in open_files())


async def until_closed(before: int) -> None:
    """Wait until there are no more sockets than before."""
    while sockets() > before:  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(0.05)


async def test_connections_on_which_messages_came_damaged_are_closed(
    no_collection: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abandoned_calls, "FREED_WITHIN_S", 0.05)
    async with asyncio.timeout(LONG_S), linked(SETTINGS) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 100))
        await rig.consumer.received.wait_count(1)
        before = sockets()
        for sequence in range(1, TIMES + 1):
            rig.wire.misspell(EDGE.encode())
            rig.link.send_nowait(marked_chunk("s", sequence, 100))
            await rig.consumer.received.wait_count(sequence + 1)
        assert rig.wire.damaged == TIMES
        assert rig.link.state.counts["reconnected"] == TIMES
        await until_closed(before)


async def test_connection_of_a_lost_link_is_closed(
    no_collection: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abandoned_calls, "FREED_WITHIN_S", 0.05)
    consumer = LinkConsumer(SETTINGS, attach_best, boot_id="now")
    async with asyncio.timeout(LONG_S), serving(consumer) as address:
        before = sockets()
        link, told = producer(address, SETTINGS, boot_id="before")
        link.send_nowait(marked_chunk("s", 0, 100))
        await told.changed.wait_until(lambda: told.lost)
        await until_closed(before)
        await link.close()
