"""The entries of a ring of messages, from one writer to one reader. This module performs no I/O.

An entry is a header followed by a message. It continues at the beginning of the memory when it
reaches the end. The header contains the position of the entry since the ring was created, so that
the reader recognizes an entry of an earlier lap, and a checksum of the header. Messages contain a
checksum of their own.

Each end keeps its own position. Everything that both ends have to agree on is counted by two
counters, one for each direction. The writer adds the size of an entry to `written`, and the reader
adds the size of what it has copied to `freed`.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import Protocol

from antiphon.errors import DataLoss

MOST_AT_ONCE = 32
"""The maximum number of messages that are read before the event loop continues."""
MESSAGE_SHARE = 4
"""A message may take up one part in this many of the memory. A larger message would delay the ones
after it, and copying it twice costs more than sending it.
"""

# The position of the entry, the number of messages on the stream before it, and the length of the
# message.
_NUMBERS = struct.Struct("<QQI")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _NUMBERS.size + _CHECKSUM.size


class DamagedRing(DataLoss):
    """The ring doesn't contain what its writer has written."""


class RingCounter(Protocol):
    """A counter that both ends share. Neither method waits."""

    def take(self) -> int:
        """Return the value and reset it."""

    def add(self, size: int) -> None:
        """Add to the value. Raises `DamagedRing` if this isn't possible."""


class EntryWriter:
    """Writes entries into empty memory."""

    def __init__(self, memory: mmap.mmap, written: RingCounter, freed: RingCounter) -> None:
        self._memory = memory
        self._written, self._freed = written, freed
        self._capacity = self._free = len(memory)
        self._position = 0

    def write(self, message: bytes, after: int) -> bool:
        """Write a message and wake the reader. Returns False if there is no space.

        `after` is the number of messages on the stream before it. Raises `DamagedRing` if a counter
        was changed.
        """
        size = _HEADER_BYTES + len(message)
        if len(message) > self._capacity // MESSAGE_SHARE or not self._has_space(size):
            return False
        numbers = _NUMBERS.pack(self._position, after, len(message))
        entry = numbers + _CHECKSUM.pack(zlib.crc32(numbers)) + message
        at = self._position % self._capacity
        until_end = self._capacity - at
        if len(entry) <= until_end:
            self._memory[at : at + len(entry)] = entry
        else:
            self._memory[at:] = entry[:until_end]
            self._memory[: len(entry) - until_end] = entry[until_end:]
        self._position += size
        self._free -= size
        self._written.add(size)
        return True

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()

    def _has_space(self, size: int) -> bool:
        if self._free < size:
            self._free += self._freed.take()
            if self._free > self._capacity:
                raise DamagedRing("ring: its reader has freed more than was written")
        return self._free >= size


class EntryReader:
    """Reads the entries of a writer with the same memory and counters."""

    def __init__(self, memory: mmap.mmap, written: RingCounter, freed: RingCounter) -> None:
        self._memory = memory
        self._written, self._freed = written, freed
        self._capacity = len(memory)
        self._position = self._unread = 0

    def notice(self) -> None:
        """Count the bytes that were written since the last call."""
        self._unread += self._written.take()

    def messages(self, taken: int) -> list[bytes]:
        """Return the next messages, at most `MOST_AT_ONCE`, up to the first one that was sent after
        more than `taken` messages of the stream. Their space is freed.

        Raises `DamagedRing` if the memory or a counter was changed.
        """
        if self._unread > self._capacity:
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
            self._freed.add(freed)
        return messages

    def close(self) -> None:
        """Unmap the memory."""
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
        at = (self._position + offset) % self._capacity
        piece = self._memory[at : at + size]
        return piece if len(piece) == size else piece + self._memory[: size - len(piece)]
