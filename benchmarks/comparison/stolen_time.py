"""Measures how much CPU time the host has taken from this machine, based on /proc/stat (Linux)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_STOLEN = 7
_COUNTED = 8


@dataclass(frozen=True, slots=True)
class CoreTicks:
    """The total number of ticks of all cores, and the number of ticks taken by the host."""

    passed: int
    stolen: int

    @classmethod
    def now(cls) -> CoreTicks:
        """Read the current values."""
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return cls(sum(ticks[:_COUNTED]), ticks[_STOLEN])

    def stolen_until(self, later: CoreTicks) -> float:
        """Return the fraction of CPU time that the host has taken between two points in time."""
        return (later.stolen - self.stolen) / max(later.passed - self.passed, 1)
