"""A ring of messages in shared memory, from one writer to one reader on the same host.

The memory contains only the messages. Everything that both processes have to agree on is counted by
two eventfds, one for each direction. The writer adds the size of an entry to `written`, and the
reader adds the size of what it has copied to `freed`. Each process keeps its own position, so there
is no shared cursor that could be damaged.

Python has no memory barriers, so the order of the accesses is due to the eventfds. The kernel
changes the counter of an eventfd under a spin lock, both in `read` and in `write`. Releasing a lock
makes all earlier stores of that processor visible to the next processor that acquires it. When the
reader finds the size of an entry in the counter, it therefore sees the bytes of the entry. It reads
at most as many bytes as it has found. In the other direction, the reader copies an entry before it
adds the size to `freed`, so the writer can't overwrite bytes that are still being copied. None of
this depends on the order in which a processor executes plain stores, which differs between x86 and
arm64. The `write` also wakes the reader's event loop, so the barrier costs no extra system call.

An entry is a header followed by a message. It continues at the beginning of the memory when it
reaches the end. The header contains the position of the entry since
the ring was created, so that the reader recognizes an entry of an earlier lap, and a checksum of
the header. Messages contain a checksum of their own.

If an entry doesn't fit, `write` does nothing and returns False. The ring never waits, although both
processes share the flag that makes an eventfd non-blocking, so either can clear it. Reads therefore
don't depend on the flag (`RWF_NOWAIT`). Linux has no such option for writing to an eventfd, so the
flag is checked before each write, and a ring whose flag was cleared counts as damaged. Only a
process that clears the flag and fills the counter between the check and the write could still block
the other.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import sys
import zlib

from antiphon.errors import DataLoss
from antiphon.transport.anonymous_file import check_sealed, create_sealed

RING_BYTES = 256 << 10
"""The size of the memory. It is a multiple of the page size of every architecture."""
MAX_MESSAGE_BYTES = RING_BYTES // 4
"""The maximum size of a message in the ring. A larger message would delay the ones after it, and
copying it twice costs more than sending it.
"""
MOST_AT_ONCE = 32
"""The maximum number of messages that are read before the event loop continues."""
PROOF_BYTES = 32
"""The size of the random bytes that the memory contains until the first message is written."""

# The position of the entry, the number of messages on the stream before it, and the length of the
# message.
_NUMBERS = struct.Struct("<QQI")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _NUMBERS.size + _CHECKSUM.size


class DamagedRing(DataLoss):
    """The ring doesn't contain what its writer has written."""


class RingWriter:
    """The writer's end. It owns the memory and both eventfds.

    Raises `OSError` if the memory can't be reserved, or if this system can't read eventfds.
    """

    def __init__(self) -> None:
        fds = [create_sealed("antiphon-ring", RING_BYTES)]
        try:
            os.posix_fallocate(fds[0], 0, RING_BYTES)
            self._memory = mmap.mmap(fds[0], RING_BYTES)
            # One at a time, so that the first is closed if the second can't be created.
            fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            _take_count(fds[2])
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        self.fds = tuple(fds)
        self.proof = secrets.token_bytes(PROOF_BYTES)
        self._memory[:PROOF_BYTES] = self.proof
        self._position = 0
        self._free = RING_BYTES

    def write(self, message: bytes, after: int) -> bool:
        """Write a message and wake the reader. Returns False if there is no space.

        Raises `DamagedRing` if a counter was changed.
        """
        size = _HEADER_BYTES + len(message)
        if len(message) > MAX_MESSAGE_BYTES or not self._has_space(size):
            return False
        numbers = _NUMBERS.pack(self._position, after, len(message))
        entry = numbers + _CHECKSUM.pack(zlib.crc32(numbers)) + message
        at = self._position % RING_BYTES
        until_end = RING_BYTES - at
        if len(entry) <= until_end:
            self._memory[at : at + len(entry)] = entry
        else:
            self._memory[at:] = entry[:until_end]
            self._memory[: len(entry) - until_end] = entry[until_end:]
        self._position += size
        self._free -= size
        _add_count(self.fds[1], size)
        return True

    def close(self) -> None:
        """Close all descriptors and unmap the memory."""
        for fd in self.fds:
            os.close(fd)
        self._memory.close()

    def _has_space(self, size: int) -> bool:
        if self._free < size:
            self._free += _take_count(self.fds[2])
            if self._free > RING_BYTES:
                raise DamagedRing("ring: its reader has freed more than was written")
        return self._free >= size


class RingReader:
    """The reader's end of a ring with these descriptors, which it takes ownership of.

    `wakeup_fd` is readable when there are new entries. Raises `OSError`, or `ValueError` if the
    descriptors aren't those of a ring.
    """

    def __init__(self, memory_fd: int, written_fd: int, freed_fd: int) -> None:
        self.wakeup_fd = written_fd
        self._freed_fd = freed_fd
        self._position = self._unread = 0
        try:
            check_sealed(memory_fd, RING_BYTES)
            for fd in (written_fd, freed_fd):
                _check_eventfd(fd)
            self.notice()
            self._memory = mmap.mmap(memory_fd, RING_BYTES, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            os.close(written_fd)
            os.close(freed_fd)
            raise
        finally:
            os.close(memory_fd)

    def notice(self) -> None:
        """Count the bytes that were written since the last call. `wakeup_fd` is then unreadable
        until the next message is written.
        """
        self._unread += _take_count(self.wakeup_fd)

    def messages(self, taken: int) -> list[bytes]:
        """Return the next messages, at most `MOST_AT_ONCE`, up to the first one that was sent after
        more than `taken` messages of the stream. Their space is freed.

        Raises `DamagedRing` if the memory or a counter was changed.
        """
        if self._unread > RING_BYTES:
            raise DamagedRing("ring: more was written than fits into it")
        messages: list[bytes] = []
        freed = 0
        while self._unread and len(messages) < MOST_AT_ONCE:
            after, length = self._header()
            if after > taken:
                break
            messages.append(self._copy(_HEADER_BYTES, length))
            size = _HEADER_BYTES + length
            self._position += size
            self._unread -= size
            freed += size
        if freed:
            _add_count(self._freed_fd, freed)
        return messages

    def proof(self) -> bytes:
        """Return the bytes of the ring that prove that this process can read it."""
        return self._memory[:PROOF_BYTES]

    def close(self) -> None:
        """Close all descriptors and unmap the memory."""
        os.close(self.wakeup_fd)
        os.close(self._freed_fd)
        self._memory.close()

    def _header(self) -> tuple[int, int]:
        """Return the number of messages on the stream before the next entry, and its length."""
        header = self._copy(0, min(_HEADER_BYTES, self._unread))
        numbers = header[: _NUMBERS.size]
        if header[_NUMBERS.size :] != _CHECKSUM.pack(zlib.crc32(numbers)):
            raise DamagedRing("ring: an entry is damaged")
        position, after, length = _NUMBERS.unpack(numbers)
        if position != self._position or _HEADER_BYTES + length > self._unread:
            raise DamagedRing("ring: an entry is not the next one")
        return after, length

    def _copy(self, offset: int, size: int) -> bytes:
        """Return `size` bytes of the next entry, which may continue at the beginning."""
        at = (self._position + offset) % RING_BYTES
        piece = self._memory[at : at + size]
        return piece if len(piece) == size else piece + self._memory[: size - len(piece)]


def _check_eventfd(fd: int) -> None:
    """Raise `ValueError` if this isn't an eventfd. A socket could be readable forever, and an event
    loop can't watch a file.
    """
    if os.readlink(f"/proc/self/fd/{fd}") != "anon_inode:[eventfd]":
        raise ValueError("a counter of the ring is not an eventfd")


def _take_count(fd: int) -> int:
    """Return the value of an eventfd, and reset it. The value is 0 if nothing was added."""
    value = bytearray(8)
    try:
        os.preadv(fd, [value], -1, os.RWF_NOWAIT)
    except BlockingIOError:
        return 0
    return int.from_bytes(value, sys.byteorder)


def _add_count(fd: int, size: int) -> None:
    """Add to an eventfd. Raises `DamagedRing` if this would block or could block."""
    if os.get_blocking(fd):
        raise DamagedRing("ring: the other end has made a counter blocking")
    try:
        os.eventfd_write(fd, size)
    except BlockingIOError:
        raise DamagedRing("ring: a counter is full") from None
