"""What a collective's receiver takes from its producer; over Gloo, as everywhere on a CPU."""

from __future__ import annotations

import asyncio
import logging
import queue
import subprocess
import sys
import threading
from datetime import timedelta
from logging.handlers import QueueHandler
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.errors import DataLoss
from antiphon.transport.payload import collective, process_group
from antiphon.transport.payload.collective import (
    CollectiveFallback,
    CollectiveReceiver,
    CollectiveSender,
    join_rendezvous,
)
from antiphon.transport.payload.process_group import PRODUCER, Group
from antiphon.transport.payload.registry import attach_best
from antiphon.transport.payload.transport import NotPlaced, PayloadLost, placed
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding, decode
from antiphon.wire.frames import LinkMessage
from antiphon_testkit.link_rig import Changes

LARGEST_BYTES = 1 << 30


def payload(transfer: int, size: int) -> chunk_pb2.Payload:
    return placed("gloo", size, transfer.to_bytes(8, "little"))


class Ends:
    """Both sides in this process; the producer's messages go straight to the consumer."""

    def __init__(self) -> None:
        self.started = Changes()
        self.sender = CollectiveSender("cpu", "127.0.0.1", self._write)
        offer = self.sender.offer()
        self.receiver: CollectiveReceiver
        self.receiver, self.proof = join_rendezvous(offer, "cpu")

    async def _write(self, message: LinkMessage) -> None:
        assert isinstance(message, stage_pb2.LinkRequest)
        self.receiver.begin(message.start.payload)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


@pytest.fixture
async def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    # A busy machine may take its time; what a test wants to be short it says.
    monkeypatch.setattr(collective, "SETTLE_S", 60.0)
    monkeypatch.setattr(process_group, "TIMEOUT", timedelta(seconds=60))
    monkeypatch.setattr(collective, "PROVED_WITHIN_S", 60.0)
    return await asyncio.to_thread(Ends)


async def test_blob_comes_over_the_group_and_proofs_are_checked(ends: Ends) -> None:
    assert ends.sender.proved(ends.proof)
    assert not ends.sender.proved(bytes(len(ends.proof)))
    row = np.arange(100_000, dtype=np.uint32)
    encoding = Encoding({"x": row})
    placement = ends.sender.place(encoding)
    assert placement.push is not None
    await placement.push()
    # The padding is whatever was there.
    np.testing.assert_array_equal(decode(await ends.receiver.fetch(placement.payload))["x"], row)
    placement = ends.sender.place(encoding)
    assert placement.push is not None
    await placement.push()
    placement.payload.size_bytes -= 1
    with pytest.raises(DataLoss, match="a different size"):
        await ends.receiver.fetch(placement.payload)
    ends.close()
    with pytest.raises(NotPlaced) as caught:
        ends.sender.place(encoding)
    assert caught.value.reason is CollectiveFallback.COLLECTIVE_FAILED


async def test_nothing_is_reserved_for_a_payload_that_is_too_large(ends: Ends) -> None:
    with pytest.raises(DataLoss, match=f"a payload of {LARGEST_BYTES + 1} bytes"):
        ends.receiver.begin(payload(0, LARGEST_BYTES + 1))
    with pytest.raises(PayloadLost, match="never began"):
        await ends.receiver.fetch(payload(0, LARGEST_BYTES + 1))
    ends.close()


async def test_payload_is_lost_when_its_transfer_is_another_or_never_comes(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "SETTLE_S", 0.05)
    ends.receiver.begin(payload(3, 100))
    with pytest.raises(PayloadLost, match="never began"):
        await ends.receiver.fetch(payload(4, 100))
    ends.receiver.begin(payload(5, 100))
    with pytest.raises(PayloadLost) as caught:
        await ends.receiver.fetch(payload(5, 100))
    assert caught.value.reason is CollectiveFallback.COLLECTIVE_FAILED
    ends.close()


def test_process_lives_on_when_a_rank_stalls_while_it_joins() -> None:
    program = [sys.executable, str(Path(__file__).with_name("stalled_rank.py"))]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) > 0


async def test_offer_is_broken_when_the_other_rank_never_joins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collective, "OFFERED", timedelta(seconds=0.05))
    told: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    caplog.set_level(logging.INFO, collective.log.name)
    handler = QueueHandler(told)
    monkeypatch.setattr(collective.log, "handlers", [handler])
    sender = await asyncio.to_thread(CollectiveSender, "cpu", "127.0.0.1", unheard)
    while not sender.broken:
        # Senders of other tests write to this log, too.
        await asyncio.to_thread(told.get, timeout=120)
    with pytest.raises(NotPlaced):
        sender.place(Encoding({"x": np.zeros(9)}))
    sender.close()


def test_group_that_was_not_joined_in_time_is_left() -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group, nonce = Group(store, PRODUCER, "cpu", "127.0.0.1", timedelta(seconds=0.05)), bytearray(1)
    blob = torch.frombuffer(nonce, dtype=torch.uint8)
    with pytest.raises(RuntimeError):
        group.send(blob)
    with pytest.raises(RuntimeError, match="has been left"):
        group.send(blob)


async def test_rendezvous_alone_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "TIMEOUT", timedelta(seconds=0.05))
    # Somebody answers at the address and says that he comes; but nothing goes through a group.
    reached = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    reached.set("nonce", bytes(32).hex())
    reached.set("here/0", b"")
    offers = [
        stage_pb2.TransportOffer(transport="gloo", descriptor=f"127.0.0.1:{reached.port}".encode()),
        stage_pb2.TransportOffer(transport="grpc"),
    ]
    settings = LinkSettings("auto", "cpu", slab_bytes=1 << 20, resume_window_s=1.0)
    attached = await attach_best(offers, settings)
    assert attached.receiver.name == "grpc"
    (refused,) = attached.refused
    assert refused.startswith("nccl: can't be reached from the consumer: ")


async def test_offer_that_nobody_takes_is_given_up_with_its_sender() -> None:
    before = set(threading.enumerate())
    sender = await asyncio.to_thread(CollectiveSender, "cpu", "127.0.0.1", unheard)
    more = set(threading.enumerate()) - before
    (waiting,) = (each for each in more if each.name == "collective sender")
    sender.close()
    await asyncio.to_thread(waiting.join, 50.0)
    assert not waiting.is_alive()


async def unheard(message: LinkMessage) -> None:
    """A link that nobody listens on."""
