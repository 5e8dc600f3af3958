"""Hidden rows on their way from a worker to the stage: exact, bounded, never in the way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe

import ml_dtypes
import numpy as np
import pytest
import torch

from antiphon.errors import DataLoss
from antiphon.transport.device_edge import UNIT_BYTES, Staging
from antiphon.values.chunk import Tensor
from antiphon_services.vllm.row_messages import decode_rows, encode_rows
from antiphon_services.vllm.row_receiver import RowReceiver
from antiphon_services.vllm.row_sender import RowSender
from antiphon_services.vllm.spans import RowSpan
from antiphon_testkit.late_copies import LateCopies

SPANS = [RowSpan(4, 10, 2), RowSpan(5, 0, 1)]
SLOTS = torch.tensor([5, 6, 1])
TIMEOUT_S = 120.0
MOST_BYTES = 1 << 20


@pytest.fixture
def cache() -> torch.Tensor:
    """Four blocks of two rows: row n has the values n, n + 0.5, n - 0.5."""
    rows = torch.arange(8.0).reshape(4, 1, 2, 1)
    return torch.cat([rows, rows + 0.5, rows - 0.5], dim=-1)


class Taken:
    """A receiver with what came to it."""

    def __init__(self) -> None:
        self.rows: queue.Queue[tuple[RowSpan, Tensor]] = queue.Queue()
        self.lost: queue.Queue[int] = queue.Queue()
        self.broken: queue.Queue[int] = queue.Queue()
        self.receiver = RowReceiver(
            rows=lambda span, rows: self.rows.put((span, rows)),
            lost=self.lost.put,
            broken=self.broken.put,
            life=lambda: 3,
        )


@pytest.fixture
def taken() -> Iterator[Taken]:
    made = Taken()
    yield made
    made.receiver.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_arrive_exactly_in_their_dtype(
    taken: Taken, cache: torch.Tensor, dtype: torch.dtype
) -> None:
    sender = RowSender(taken.receiver.address.connect(), MOST_BYTES)
    sender.send_nowait(SPANS, cache.to(dtype), SLOTS)
    expected = cache.reshape(8, 3)[SLOTS].float().numpy()
    for span, rows in zip(SPANS, (expected[:2], expected[2:]), strict=True):
        told, came = taken.rows.get(timeout=TIMEOUT_S)
        assert told == span
        assert came.dtype == (ml_dtypes.bfloat16 if dtype is torch.bfloat16 else rows.dtype) or (
            dtype is torch.float16 and came.dtype == np.float16
        )
        np.testing.assert_array_equal(came.astype(np.float32), rows)
    sender.close()
    assert taken.broken.get(timeout=TIMEOUT_S) == 3


def test_rows_of_a_step_are_what_they_were_when_their_blocks_are_reused(
    taken: Taken, cache: torch.Tensor
) -> None:
    sender = RowSender(taken.receiver.address.connect(), MOST_BYTES)
    sender.send_nowait(SPANS[1:], cache, SLOTS[2:])
    cache.zero_()
    assert taken.rows.get(timeout=TIMEOUT_S)[1].tolist() == [[1.0, 1.5, 0.5]]
    sender.close()


def test_requests_are_told_their_loss_when_the_socket_is_stuck(cache: torch.Tensor) -> None:
    """The reader reads nothing until the sender has been offered more than it may keep."""
    here, there = Pipe()
    big = torch.zeros(1, 1, 1 << 18, 16)
    sender = RowSender(there, big.nbytes)
    slots = torch.arange(1 << 18)
    for number in range(8):
        sender.send_nowait([RowSpan(number, 0, len(slots))], big, slots)
    whole, lost = _read_until_told(here, 8)
    assert whole | lost == set(range(8))
    assert lost
    assert not whole & lost
    sender.close()


def test_sender_takes_rows_without_complaint_when_the_stage_is_gone(cache: torch.Tensor) -> None:
    here, there = Pipe()
    here.close()
    sender = RowSender(there, MOST_BYTES)
    for _ in range(3):
        sender.send_nowait(SPANS, cache, SLOTS)
    sender.close()


def test_connection_is_refused_without_the_secret(
    taken: Taken, caplog: pytest.LogCaptureFixture, cache: torch.Tensor
) -> None:
    stranger = type(taken.receiver.address)(taken.receiver.address.name, "00" * 32)
    with pytest.raises(Exception, match="digest"):
        stranger.connect()
    sender = RowSender(taken.receiver.address.connect(), MOST_BYTES)
    sender.send_nowait(SPANS, cache, SLOTS)
    assert taken.rows.get(timeout=TIMEOUT_S)[0] == SPANS[0]
    assert "rejected" in caplog.text
    sender.close()


def test_message_is_refused_when_rows_are_missing() -> None:
    with pytest.raises(DataLoss, match="2 hidden rows"):
        decode_rows(encode_rows(SPANS, np.zeros((2, 3), np.float32), []))


def _read_until_told(connection: Connection, requests: int) -> tuple[set[int], set[int]]:
    """Numbers of the requests whose rows came, and of those that lost theirs."""
    whole: set[int] = set()
    lost: set[int] = set()
    while len(whole) + len(lost) < requests:
        assert connection.poll(TIMEOUT_S)
        arrived, missing = decode_rows(connection.recv_bytes())
        whole |= {span.number for span, _ in arrived}
        lost |= set(missing)
    return whole, lost


class Allocations:
    """Counts tensors that are allocated while rows are sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated = 0
        real = torch.empty

        def count(*args: object, **kwargs: object) -> torch.Tensor:
            self.allocated += 1
            return real(*args, **kwargs)  # type: ignore[call-overload, no-any-return]

        monkeypatch.setattr(torch, "empty", count)


def test_rows_of_every_size_share_memory_that_is_pinned_once(
    taken: Taken, cache: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(4 * UNIT_BYTES, pinned=False)
    copies = LateCopies()
    connection, before = taken.receiver.address.connect(), set(threading.enumerate())
    sender = RowSender(connection, MOST_BYTES, copies, staging)
    more = set(threading.enumerate()) - before
    sending = [each for each in more if each.name == "hidden rows"]
    assert sending
    watch = Allocations(monkeypatch)
    for count in (1, 3, 2, 7, 5):
        slots = torch.arange(count)
        sender.send_nowait([RowSpan(4, 10, count)], cache, slots)
        span, rows = taken.rows.get(timeout=TIMEOUT_S)
        assert span == RowSpan(4, 10, count)
        np.testing.assert_array_equal(rows, cache[slots // 2, 0, slots % 2].numpy())
    assert watch.allocated == 0
    assert copies.begun == copies.made == 5
    sender.close()
    for each in sending:
        each.join(TIMEOUT_S)
    assert staging.used == 0


def test_rows_that_find_no_place_in_pinned_memory_arrive_as_well(
    taken: Taken, cache: torch.Tensor
) -> None:
    staging = Staging(UNIT_BYTES, pinned=False)
    kept = staging.take(UNIT_BYTES)
    sender = RowSender(taken.receiver.address.connect(), MOST_BYTES, LateCopies(), staging)
    sender.send_nowait(SPANS, cache, SLOTS)
    spans = [taken.rows.get(timeout=TIMEOUT_S)[0] for _ in SPANS]
    assert spans == SPANS
    assert kept is not None
    sender.close()
