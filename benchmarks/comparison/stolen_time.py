"""How much of this machine's cores its host gave to others, from /proc/stat (Linux)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_STOLEN = 7
_COUNTED = 8


@dataclass(frozen=True, slots=True)
class CoreTicks:
    """Ticks of all cores since the start: in all, and those that the host took."""

    passed: int
    stolen: int

    @classmethod
    def now(cls) -> CoreTicks:
        """Read them."""
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return cls(sum(ticks[:_COUNTED]), ticks[_STOLEN])

    def stolen_until(self, later: CoreTicks) -> float:
        """The part of the cores' time between these moments that the host took."""
        return (later.stolen - self.stolen) / max(later.passed - self.passed, 1)
