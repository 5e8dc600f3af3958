"""What a link keeps and what it sends at once: no more than it must."""

from __future__ import annotations

import gc
import random
from dataclasses import replace

import pytest

from antiphon.errors import DataLoss
from antiphon.transport.link.incoming import connection as incoming_connection
from antiphon.transport.link.outgoing.send_log import Outgoing
from antiphon.transport.payload.registry import make_senders
from antiphon.transport.payload.shared_memory import SlabSender
from antiphon.transport.payload.transport import PayloadSender, WriteMessage
from antiphon.transport.settings import LinkSettings
from antiphon.values.chunk import Chunk
from antiphon.values.segment import FinishReason
from antiphon_testkit.faulty_transport import FaultySender
from antiphon_testkit.link_rig import linked, marked_chunk
from antiphon_testkit.open_files import open_files

SHARED = LinkSettings("shared_memory", "cpu", slab_bytes=1 << 20, resume_window_s=5.0)
GRPC = LinkSettings("grpc", "cpu", slab_bytes=1 << 20, resume_window_s=5.0)


def outgoing() -> list[Outgoing]:
    """Chunks on their way, of all links."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Outgoing]


async def test_nothing_of_a_chunk_is_kept_when_it_was_acknowledged() -> None:
    # Of links that other tests left; none of these dies while it is listed.
    others = outgoing()
    async with linked(SHARED) as rig:
        # In a slot, and two that are too large for one.
        for sequence, size in enumerate((100, 100_000, 3 << 20, 3 << 20, 100_000)):
            rig.link.send_nowait(marked_chunk("s", sequence, size))
        await rig.told.changed.wait_until(lambda: rig.told.settled and not rig.link.sessions)
        assert rig.link.state.counts["chunks.shared_memory"]
        assert rig.link.state.counts["fallback.too_large"]
        rig.link.send_nowait(marked_chunk("t", 0, 10))
        await rig.told.changed.wait_until(lambda: "t" in rig.told.settled)
        assert len(outgoing()) - len(others) <= 1  # The one that the writer has taken last.


async def test_slots_are_free_again_when_their_payloads_got_lost() -> None:
    made: list[SlabSender] = []

    async def senders(
        settings: LinkSettings, address: str, write: WriteMessage
    ) -> tuple[list[PayloadSender], list[str]]:
        senders, failed = await make_senders(settings, address, write)
        (slab,) = senders
        assert isinstance(slab, SlabSender)
        made.append(slab)
        return [FaultySender(slab, random.Random(3), 0.5)], failed

    async with linked(SHARED, senders=senders) as rig:
        for sequence in range(20):
            rig.link.send_nowait(marked_chunk("s", sequence, 30_000))
        await rig.told.changed.wait_until(lambda: rig.told.settled and not rig.link.sessions)
        rig.consumer.received.check_complete("s", 20)
        assert rig.link.state.counts["fallback.slot_lost"]
        assert made[0].slab.used == 0


async def test_gap_is_data_loss_also_after_payloads_were_asked_for_again() -> None:
    async def senders(
        settings: LinkSettings, address: str, write: WriteMessage
    ) -> tuple[list[PayloadSender], list[str]]:
        made, failed = await make_senders(settings, address, write)
        return [FaultySender(each, random.Random(3), 0.5) for each in made], failed

    async with linked(SHARED, senders=senders) as rig:
        for sequence in range(20):
            rig.link.send_nowait(marked_chunk("s", sequence, 30_000))
        await rig.told.changed.wait_until(lambda: rig.told.settled and not rig.link.sessions, 60.0)
        assert rig.link.state.counts["fallback.slot_lost"]
        # As if one more had been sent, of which the consumer knows nothing.
        rig.link._log._first += 1
        rig.link.send_nowait(marked_chunk("t", 0, 10))
        await rig.told.changed.wait_until(lambda: rig.told.lost, 60.0)
        assert isinstance(rig.told.lost[0], DataLoss)


@pytest.mark.parametrize(
    "chunks",
    [
        [marked_chunk("s", sequence, 3 << 20) for sequence in range(3)],
        [marked_chunk("s", sequence, 0) for sequence in range(256)],
        [Chunk("s", "rows", segment_finished=True, finish_reason=FinishReason.STOP)],
    ],
    ids=["bytes", "chunks", "end"],
)
async def test_progress_is_told_at_once_when_there_is_much_or_an_end(
    chunks: list[Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming_connection, "PROGRESS_S", 3600.0)
    async with linked(GRPC) as rig:
        for chunk in chunks:
            rig.link.send_nowait(chunk)
        await rig.told.changed.wait_until(lambda: rig.told.settled, 60.0)


async def test_progress_is_told_after_a_while_when_there_is_little() -> None:
    async with linked(GRPC) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 10))
        await rig.told.changed.wait_until(lambda: rig.told.settled, 60.0)


async def test_messages_are_bounded_when_much_goes_by_shared_memory() -> None:
    """Placing a payload copies it: what another session sends must not wait for all of them."""
    async with linked(replace(SHARED, slab_bytes=64 << 20)) as rig:
        for sequence in range(12):
            rig.link.send_nowait(marked_chunk("s", sequence, 3_000_000))
        await rig.consumer.received.wait_count(12)
        rig.consumer.received.check_complete("s", 12)
        counts = rig.link.state.counts
        assert counts["chunks.shared_memory"] == 12
        # At most 4 MiB and a chunk each; the first is the hello.
        assert counts["messages"] - 1 >= 6


@pytest.mark.parametrize(("count", "size"), [(40, 500_000), (10_000, 0)], ids=["bytes", "chunks"])
async def test_messages_are_bounded_when_much_waits(count: int, size: int) -> None:
    async with linked(GRPC) as rig:
        for sequence in range(count):
            rig.link.send_nowait(marked_chunk("s", sequence, size))
        await rig.consumer.received.wait_count(count)
        rig.consumer.received.check_complete("s", count)
        # At most 1 MiB and a chunk, and at most 4096 chunks each; the first is the hello.
        assert rig.link.state.counts["messages"] - 1 >= max(
            count * size // 1_600_000, count // 4096
        )


async def test_nothing_is_kept_of_the_slabs_of_connections_that_broke() -> None:
    """Without waiting for the garbage collector, which an idle stage hardly ever calls."""
    async with linked(replace(SHARED, resume_window_s=60.0)) as rig:
        rig.link.send_nowait(marked_chunk("s", 0, 100_000))
        await rig.consumer.received.wait_count(1)
        gc.collect()
        at_first = slabs()
        gc.disable()
        try:
            for sequence in range(1, 6):
                rig.wire.cut()
                rig.link.send_nowait(marked_chunk("s", sequence, 100_000))
                await rig.consumer.received.wait_count(sequence + 1)
                await rig.told.changed.wait_until(lambda: not rig.link.sessions, 60.0)
            assert rig.link.state.counts["reconnected"] == 5
            assert slabs() == at_first
        finally:
            gc.enable()


def slabs() -> int:
    """Descriptors of slabs that this process has open; a mapping has one of its own."""
    return sum("memfd" in each for each in open_files())
