"""Reports of a consumer for each message: the time when it can be used, and the CPU time so far."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from typing import NamedTuple

_REPORT = struct.Struct("<qq")


class Arrival(NamedTuple):
    """The arrival time of a message on a clock that all processes share, and the CPU time until
    then.

    Both values are in nanoseconds.
    """

    at_ns: int
    cpu_ns: int


def report(fd: int) -> None:
    """Report, in the consumer, that a message can be read."""
    os.write(fd, _REPORT.pack(time.monotonic_ns(), time.process_time_ns()))


class Reports:
    """The producer's end of the pipe that a consumer uses for its reports."""

    def __init__(self) -> None:
        self._read, self.write_fd = os.pipe()
        os.set_blocking(self._read, False)
        self._arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(self._read, self._take)

    async def next(self) -> Arrival:
        """Return the next report."""
        return await self._arrivals.get()

    def close(self) -> None:
        """Close both ends."""
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        os.close(self.write_fd)

    def _take(self) -> None:
        for at_ns, cpu_ns in _REPORT.iter_unpack(os.read(self._read, _REPORT.size)):
            self._arrivals.put_nowait(Arrival(at_ns, cpu_ns))
