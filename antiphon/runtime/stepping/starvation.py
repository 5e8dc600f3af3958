"""Measures a thread's run-queue delay, which is the time that the thread spent ready to run but
waiting for a core (Linux only).
"""

from __future__ import annotations

import os

_SCHEDSTAT = "/proc/thread-self/schedstat"
_MOST_BYTES = 128


class Starvation:
    """The run-queue delay of the thread that creates this object. It can be read from any thread.

    Without /proc, the delay is always 0. /proc/thread-self/schedstat contains the time on a core in
    nanoseconds, the time spent waiting for a core in nanoseconds, and the number of time slices.
    Reading it takes about 2 µs.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def seconds(self) -> float:
        """Return the delay in seconds since the thread started. Returns 0 if the thread
        has ended.
        """
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, _MOST_BYTES, 0).split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
