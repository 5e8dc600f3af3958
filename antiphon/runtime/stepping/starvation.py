"""How long a thread has been ready to run without a core, as Linux counts it."""

from __future__ import annotations

import os

_SCHEDSTAT = "/proc/thread-self/schedstat"
_MOST_BYTES = 128


class Starvation:
    """Of the thread that constructs it. Any thread may read; where there is no /proc it is 0.

    The file has three numbers: nanoseconds on a core, nanoseconds of waiting for one, and slices.
    Reading it takes about 2 µs.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def seconds(self) -> float:
        """Since the thread's start. 0 when the thread has ended."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, _MOST_BYTES, 0).split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
