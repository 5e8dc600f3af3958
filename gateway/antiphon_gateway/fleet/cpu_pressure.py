"""Measures CPU contention on this machine, using Linux's pressure stall information (PSI)."""

from __future__ import annotations

import time
from pathlib import Path

_CPU = Path("/proc/pressure/cpu")


class CpuPressure:
    """Measures the fraction of time during which some thread on the host was ready to run but had
    to wait for a core.

    PSI always covers the whole host, even inside a container. If the kernel doesn't support PSI,
    the result is 0. A measurement takes about 30 µs, so it is only made during waits that are
    already long.
    """

    def __init__(self, path: Path = _CPU) -> None:
        self._path = path
        self._looked_at: float | None = None
        self._stalled_s = 0.0

    def begin(self) -> None:
        """Reset the measurement. The next call of `share` returns 0, because there is nothing to
        compare with.
        """
        self._looked_at = None

    def share(self) -> float:
        """Return the fraction since the last call, between 0 and 1."""
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
    """Parse the total in a line of the form `some avg10=... total=MICROSECONDS`. Raises
    `ValueError` if the text is malformed.
    """
    some = text.partition("\n")[0]
    return int(some.rpartition("total=")[2]) / 1e6
