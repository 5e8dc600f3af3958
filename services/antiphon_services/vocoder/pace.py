"""How much a step decodes, and which segments share a call of the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodePace:
    """What is worth doing on a device, in frames.

    `step` frames at most, over all segments, so that a step stays well below a watchdog
    and audio leaves as it is made. A segment that is not alone gets its share of them, but
    may always take `least`. A call may spend `padding` frames in all on rows that are
    shorter than its longest: about what a call of its own would cost.
    """

    step: int
    least: int
    padding: int

    def shares(self, waiting: Sequence[int]) -> list[int]:
        """How many of its `waiting` frames each segment decodes now; the first come first."""
        share = max(self.least, self.step // max(1, len(waiting)))
        left, shares = self.step, []
        for frames in waiting:
            shares.append(min(frames, share, left))
            left -= shares[-1]
        return shares

    def grouped(self, lengths: Sequence[int]) -> list[list[int]]:
        """Indices of the pieces that go into one call, by call, the longest first."""
        groups: list[list[int]] = []
        spare = 0
        for index in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
            missing = lengths[groups[-1][0]] - lengths[index] if groups else 0
            if not groups or missing > spare:
                groups.append([])
                spare, missing = self.padding, 0
            groups[-1].append(index)
            spare -= missing
        return groups


# On a CPU the fixed part of a call costs about a frame, and a larger step costs more per
# frame again (benchmarks/RESULTS.md). An accelerator is bound by the number of calls
# instead: its step is not measured, but bounds working memory, some 3 MB a frame in float32.
CPU = DecodePace(step=32, least=4, padding=1)
ACCELERATOR = DecodePace(step=256, least=4, padding=256)
