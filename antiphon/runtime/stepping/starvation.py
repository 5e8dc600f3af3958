"""Run-queue delay of a thread: time ready to run without a core (Linux)."""

from __future__ import annotations

import os

_SCHEDSTAT = "/proc/thread-self/schedstat"
_MOST_BYTES = 128


class Starvation:
    """Run-queue delay of the thread that constructs it. Any thread may read it. 0 without /proc.

    /proc/thread-self/schedstat has nanoseconds on a core, nanoseconds waiting for one, and time
    slices. Reading it takes about 2 µs.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def seconds(self) -> float:
        """Return the delay since the thread's start, 0 when the thread has ended."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, _MOST_BYTES, 0).split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
