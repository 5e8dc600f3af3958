"""How much a step decodes, and which segments share a decoder call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodePace:
    """Step sizes for a device, in frames.

    `step` bounds the frames of all segments per step, so that a step stays well below the
    watchdog's timeout and audio is sent as it is produced. A segment gets an equal share of them,
    but at least `least`. A call may spend `padding` frames in total on rows shorter than its
    longest, which is about the cost of a separate call.
    """

    step: int
    least: int
    padding: int

    def shares(self, waiting: Sequence[int]) -> list[int]:
        """Return how many of its `waiting` frames each segment decodes now, in order."""
        share = max(self.least, self.step // max(1, len(waiting)))
        left, shares = self.step, []
        for frames in waiting:
            shares.append(min(frames, share, left))
            left -= shares[-1]
        return shares

    def grouped(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return the indices of the pieces by call, longest first."""
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


# On a CPU the fixed cost of a call is about one frame, and larger steps cost more per frame
# (benchmarks/RESULTS.md). An accelerator is bound by the number of calls instead. Its step is not
# measured; it bounds working memory, about 3 MB per frame in float32.
CPU = DecodePace(step=32, least=4, padding=1)
ACCELERATOR = DecodePace(step=256, least=4, padding=256)
