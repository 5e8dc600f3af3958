"""A ring of messages in shared memory, from one writer to one reader on the same host.

The memory contains only the entries (`entries.py`). The counters that both processes share are two
eventfds. There is no shared cursor that could be damaged.

Python has no memory barriers, so the order of the accesses is due to the eventfds. The kernel
changes the counter of an eventfd under a spin lock, both in `read` and in `write`. Releasing a lock
makes all earlier stores of that processor visible to the next processor that acquires it. When the
reader finds the size of an entry in the counter, it therefore sees the bytes of the entry. It reads
at most as many bytes as it has found. In the other direction, the reader copies an entry before it
adds the size to `freed`, so the writer can't overwrite bytes that are still being copied. None of
this depends on the order in which a processor executes plain stores, which differs between x86 and
arm64. The `write` also wakes the reader's event loop, so the barrier costs no extra system call.

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
import sys

from antiphon.transport.anonymous_file import check_sealed, create_sealed
from antiphon.transport.ring.entries import (
    MESSAGE_SHARE,
    DamagedRing,
    EntryReader,
    EntryWriter,
)

RING_BYTES = 256 << 10
"""The size of the memory. It is a multiple of the page size of every architecture."""
MAX_MESSAGE_BYTES = RING_BYTES // MESSAGE_SHARE
"""The maximum size of a message in the ring."""
PROOF_BYTES = 32
"""The size of the random bytes that the memory contains until the first message is written."""


class EventfdCounter:
    """A counter in the kernel."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def take(self) -> int:
        """Return the value, and reset it. The value is 0 if nothing was added."""
        value = bytearray(8)
        try:
            os.preadv(self._fd, [value], -1, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        return int.from_bytes(value, sys.byteorder)

    def add(self, size: int) -> None:
        """Add to the value. Raises `DamagedRing` if this would block or could block."""
        if os.get_blocking(self._fd):
            raise DamagedRing("ring: the other end has made a counter blocking")
        try:
            os.eventfd_write(self._fd, size)
        except BlockingIOError:
            raise DamagedRing("ring: a counter is full") from None


class RingWriter(EntryWriter):
    """The writer's end. It owns the memory and both eventfds.

    Raises `OSError` if the memory can't be reserved, or if this system can't read eventfds.
    """

    def __init__(self) -> None:
        fds = [create_sealed("antiphon-ring", RING_BYTES)]
        try:
            os.posix_fallocate(fds[0], 0, RING_BYTES)
            memory = mmap.mmap(fds[0], RING_BYTES)
            # One at a time, so that the first is closed if the second can't be created.
            fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            freed = EventfdCounter(fds[2])
            freed.take()
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        super().__init__(memory, EventfdCounter(fds[1]), freed)
        self.fds = tuple(fds)
        self.proof = secrets.token_bytes(PROOF_BYTES)
        memory[:PROOF_BYTES] = self.proof

    def close(self) -> None:
        """Close all descriptors and unmap the memory."""
        for fd in self.fds:
            os.close(fd)
        super().close()


class RingReader(EntryReader):
    """The reader's end of a ring with these descriptors, which it takes ownership of.

    `wakeup_fd` is readable when there are new entries, until the next `notice`. Raises `OSError`,
    or `ValueError` if the descriptors aren't those of a ring.
    """

    def __init__(self, memory_fd: int, written_fd: int, freed_fd: int) -> None:
        self.wakeup_fd = written_fd
        self._freed_fd = freed_fd
        try:
            check_sealed(memory_fd, RING_BYTES)
            for fd in (written_fd, freed_fd):
                _check_eventfd(fd)
            memory = mmap.mmap(memory_fd, RING_BYTES, prot=mmap.PROT_READ)
            super().__init__(memory, EventfdCounter(written_fd), EventfdCounter(freed_fd))
            self.notice()
        except (OSError, ValueError):
            os.close(written_fd)
            os.close(freed_fd)
            raise
        finally:
            os.close(memory_fd)

    def proof(self) -> bytes:
        """Return the bytes of the ring that prove that this process can read it."""
        return self._memory[:PROOF_BYTES]

    def close(self) -> None:
        """Close all descriptors and unmap the memory."""
        os.close(self.wakeup_fd)
        os.close(self._freed_fd)
        super().close()


def _check_eventfd(fd: int) -> None:
    """Raise `ValueError` if this isn't an eventfd. A socket could be readable forever, and an event
    loop can't watch a file.
    """
    if os.readlink(f"/proc/self/fd/{fd}") != "anon_inode:[eventfd]":
        raise ValueError("a counter of the ring is not an eventfd")
