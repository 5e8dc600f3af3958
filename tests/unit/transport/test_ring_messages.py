from __future__ import annotations

import mmap
import os
import random
import socket
import struct
from collections import deque
from collections.abc import Iterator

import pytest

from antiphon.transport.anonymous_file import create_sealed
from antiphon.transport.ring.entries import MOST_AT_ONCE, DamagedRing
from antiphon.transport.ring.messages import (
    MAX_MESSAGE_BYTES,
    PROOF_BYTES,
    RING_BYTES,
    RingReader,
    RingWriter,
)
from antiphon_testkit.open_files import open_files, opened_since

# Written out here, because the format is shared by processes of different versions.
HEADER = struct.Struct("<QQII")


class Ring:
    """Both ends of a ring, and the memory as someone sees it who damages it."""

    def __init__(self) -> None:
        self.writer = RingWriter()
        self.reader = RingReader(*map(os.dup, self.writer.fds))
        self.memory = mmap.mmap(self.writer.fds[0], RING_BYTES)

    def write(self, *messages: bytes, after: int = 0) -> None:
        for message in messages:
            assert self.writer.write(message, after)

    def read(self, taken: int = 0) -> list[bytes]:
        self.reader.notice()
        found: list[bytes] = []
        while more := self.reader.messages(taken):
            found += more
        return found

    def fill(self) -> int:
        count = 0
        while self.writer.write(bytes([count % 251]) * 1000, 0):
            count += 1
        return count

    def close(self) -> None:
        self.memory.close()
        self.writer.close()
        self.reader.close()


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


def test_messages_arrive_in_order_and_once(ring: Ring) -> None:
    assert ring.read() == []
    ring.write(b"one", b"", b"three" * 100)
    assert ring.read() == [b"one", b"", b"three" * 100]
    assert ring.read() == []


def test_reader_proves_the_memory_before_the_first_message(ring: Ring) -> None:
    assert ring.reader.proof() == ring.writer.proof
    assert len(ring.writer.proof) == PROOF_BYTES
    assert any(ring.writer.proof)


def test_entries_continue_at_the_beginning_at_every_offset(ring: Ring) -> None:
    # Sizes that share no factor with the ring's make headers and messages wrap everywhere.
    for number in range(6 * RING_BYTES // 1009):
        message = number.to_bytes(4, "little") * 250
        ring.write(message)
        assert ring.read() == [message]


def test_full_ring_takes_nothing_until_entries_were_read(ring: Ring) -> None:
    count = ring.fill()
    assert count == RING_BYTES // (1000 + HEADER.size)
    assert not ring.writer.write(bytes(1000), 0)
    assert ring.read() == [bytes([each % 251]) * 1000 for each in range(count)]
    assert ring.fill() == count


def test_message_above_the_limit_does_not_fit_into_an_empty_ring(ring: Ring) -> None:
    assert not ring.writer.write(bytes(MAX_MESSAGE_BYTES + 1), 0)
    ring.write(bytes(MAX_MESSAGE_BYTES))
    assert ring.read() == [bytes(MAX_MESSAGE_BYTES)]


def test_entries_wait_for_the_messages_of_the_stream_before_them(ring: Ring) -> None:
    ring.write(b"first", after=0)
    ring.write(b"second", b"third", after=2)
    ring.write(b"last", after=3)
    assert ring.read(0) == [b"first"]
    assert ring.read(1) == []
    assert ring.read(2) == [b"second", b"third"]
    assert ring.read(9) == [b"last"]


def test_space_of_waiting_entries_is_not_freed(ring: Ring) -> None:
    ring.write(b"due")
    waiting = 0
    while ring.writer.write(bytes(1000), 1):
        waiting += 1
    assert ring.read() == [b"due"]
    assert not ring.writer.write(bytes(2000), 1)
    assert len(ring.read(1)) == waiting
    ring.write(bytes(2000))


def test_reader_sees_no_more_than_was_announced(ring: Ring) -> None:
    ring.write(b"one")
    ring.reader.notice()
    ring.write(b"two")
    assert ring.reader.messages(0) == [b"one"]
    assert ring.read() == [b"two"]


@pytest.mark.parametrize("at", range(HEADER.size))
def test_every_damaged_byte_of_a_header_is_found(ring: Ring, at: int) -> None:
    ring.write(b"message" * 20)
    ring.memory[at] ^= 0x40
    with pytest.raises(DamagedRing):
        ring.read(taken=1 << 62)


def test_entry_of_an_earlier_lap_is_found(ring: Ring) -> None:
    message = bytes(RING_BYTES // 8 - HEADER.size)
    ring.write(message)
    stale = ring.memory[: len(message) + HEADER.size]
    ring.write(*[message] * 7)
    assert len(ring.read()) == 8
    ring.write(message)
    ring.memory[: len(stale)] = stale
    with pytest.raises(DamagedRing, match="not the next one"):
        ring.read()


def test_announced_bytes_that_end_inside_an_entry_are_found(ring: Ring) -> None:
    os.eventfd_write(ring.writer.fds[1], 5)
    with pytest.raises(DamagedRing):
        ring.read()


@pytest.mark.parametrize("announced", [HEADER.size, HEADER.size + 3])
def test_entry_that_is_longer_than_announced_is_found(ring: Ring, announced: int) -> None:
    ring.write(b"message")
    os.eventfd_read(ring.writer.fds[1])
    os.eventfd_write(ring.writer.fds[1], announced)
    with pytest.raises(DamagedRing):
        ring.read()


def test_reader_refuses_more_than_fits(ring: Ring) -> None:
    os.eventfd_write(ring.writer.fds[1], RING_BYTES + 1)
    with pytest.raises(DamagedRing, match="more was written"):
        ring.read()


def test_writer_refuses_more_space_than_there_is(ring: Ring) -> None:
    os.eventfd_write(ring.writer.fds[2], RING_BYTES + 1)
    with pytest.raises(DamagedRing, match="freed more"):
        ring.fill()


def test_writer_does_not_wait_when_its_counter_is_full(ring: Ring) -> None:
    os.eventfd_write(ring.writer.fds[1], (1 << 64) - 2)
    with pytest.raises(DamagedRing, match="counter"):
        ring.writer.write(b"message", 0)


def test_reader_does_not_wait_when_the_counter_of_free_space_is_full(ring: Ring) -> None:
    ring.write(b"message")
    os.eventfd_write(ring.writer.fds[2], (1 << 64) - 2)
    with pytest.raises(DamagedRing, match="counter"):
        ring.read()


def test_no_end_waits_when_the_other_has_made_the_counters_blocking(ring: Ring) -> None:
    count = ring.fill()
    for fd in ring.writer.fds[1:]:
        os.set_blocking(fd, True)
    assert not ring.writer.write(bytes(1000), 0)
    ring.reader.notice()
    ring.reader.notice()
    with pytest.raises(DamagedRing, match="blocking"):
        ring.reader.messages(0)
    os.eventfd_write(ring.writer.fds[2], count * (1000 + HEADER.size))
    with pytest.raises(DamagedRing, match="blocking"):
        ring.writer.write(bytes(1000), 0)


def test_entries_are_read_in_bounded_batches(ring: Ring) -> None:
    ring.write(*[b"message"] * (2 * MOST_AT_ONCE + 1))
    ring.reader.notice()
    batches = [len(ring.reader.messages(0)) for _ in range(4)]
    assert batches == [MOST_AT_ONCE, MOST_AT_ONCE, 1, 0]


@pytest.mark.parametrize("seed", range(4))
def test_ring_behaves_like_a_queue(ring: Ring, seed: int) -> None:
    chance = random.Random(seed)
    expected: deque[tuple[int, bytes]] = deque()
    sent = taken = 0
    for _ in range(3000):
        sent += chance.random() < 0.2
        message = chance.randbytes(int(MAX_MESSAGE_BYTES ** chance.random()))
        used = sum(len(each) + HEADER.size for _, each in expected)
        fits = used + len(message) + HEADER.size <= RING_BYTES
        assert ring.writer.write(message, sent) is fits
        if fits:
            expected.append((sent, message))
        if chance.random() < 0.5:
            taken = chance.randint(taken, sent)
            due = []
            while expected and expected[0][0] <= taken:
                due.append(expected.popleft()[1])
            assert ring.read(taken) == due


def test_reader_refuses_memory_that_is_no_ring_and_closes_it() -> None:
    writer = RingWriter()
    try:
        for memory in (os.memfd_create("test-unsealed"), create_sealed("test-small", 4096)):
            fds = [memory, *map(os.dup, writer.fds[1:])]
            with pytest.raises(ValueError, match="memory"):
                RingReader(*fds)
            for fd in fds:
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(fd)
    finally:
        writer.close()


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("kind", ["socket", "file", "pipe"])
def test_reader_refuses_counters_that_are_no_eventfds_and_closes_them(at: int, kind: str) -> None:
    writer = RingWriter()
    before = open_files()
    fds = [os.dup(fd) for fd in writer.fds]
    os.close(fds[at])
    match kind:
        case "socket":
            # The other end is closed, so this one would always be readable.
            ours, theirs = socket.socketpair()
            theirs.close()
            fds[at] = ours.detach()
        case "file":
            fds[at] = os.memfd_create("test-file")
        case "pipe":
            fds[at], other = os.pipe()
            os.close(other)
    with pytest.raises(ValueError, match="eventfd"):
        RingReader(*fds)
    assert not opened_since(before)
    writer.close()


@pytest.mark.parametrize("made", [0, 1])
def test_no_descriptor_is_left_when_a_counter_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, made: int
) -> None:
    before = open_files()
    real, calls = os.eventfd, 0

    def fail_late(value: int, flags: int) -> int:
        nonlocal calls
        calls += 1
        if calls > made:
            raise OSError("too many open files")
        return real(value, flags)

    monkeypatch.setattr(os, "eventfd", fail_late)
    with pytest.raises(OSError, match="too many"):
        RingWriter()
    assert not opened_since(before)
