"""What a consumer tells of every message: when it could use it, and its CPU time so far."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from typing import NamedTuple

_REPORT = struct.Struct("<qq")


class Arrival(NamedTuple):
    """Nanoseconds: when (on the clock that all processes share), and CPU time until then."""

    at_ns: int
    cpu_ns: int


def report(fd: int) -> None:
    """Tell, in the consumer, that a message is there and can be read."""
    os.write(fd, _REPORT.pack(time.monotonic_ns(), time.process_time_ns()))


class Reports:
    """The producer's end of the pipe that a consumer reports on."""

    def __init__(self) -> None:
        self._read, self.write_fd = os.pipe()
        os.set_blocking(self._read, False)
        self._arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(self._read, self._take)

    async def next(self) -> Arrival:
        """The next report."""
        return await self._arrivals.get()

    def close(self) -> None:
        """Close both ends."""
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        os.close(self.write_fd)

    def _take(self) -> None:
        for at_ns, cpu_ns in _REPORT.iter_unpack(os.read(self._read, _REPORT.size)):
            self._arrivals.put_nowait(Arrival(at_ns, cpu_ns))
