"""How contended this machine's cores are: Linux's pressure stall information (PSI)."""

from __future__ import annotations

import time
from pathlib import Path

_CPU = Path("/proc/pressure/cpu")


class CpuPressure:
    """The share of time in which a thread of the host was ready and had no core.

    PSI covers the whole host, also in a container. Without PSI in the kernel the share is 0. A read
    takes about 30 µs, so that it is only used for waits that are already long.
    """

    def __init__(self, path: Path = _CPU) -> None:
        self._path = path
        self._looked_at: float | None = None
        self._stalled_s = 0.0

    def begin(self) -> None:
        """Forget the last look: the next share has no beginning, and is 0."""
        self._looked_at = None

    def share(self) -> float:
        """Since the last call, from 0 to 1."""
        try:
            stalled_s = _total_s(self._path.read_text())
        except (OSError, ValueError):
            return 0.0
        now = time.monotonic()
        before, stalled_before_s = self._looked_at, self._stalled_s
        self._looked_at, self._stalled_s = now, stalled_s
        if before is None or now <= before:
            return 0.0
        return min(1.0, (stalled_s - stalled_before_s) / (now - before))


def _total_s(text: str) -> float:
    """Of `some avg10=... total=MICROSECONDS`. Raises `ValueError` for another text."""
    some = text.partition("\n")[0]
    return int(some.rpartition("total=")[2]) / 1e6
