"""Determines the number of frames that a step decodes, and the segments that share a decoder
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodePace:
    """The step sizes for a device, in frames.

    `step` is the maximum number of frames in a step, across all segments. The limit keeps a step
    well below the watchdog's timeout and makes sure that audio is sent as it is produced. Each
    segment gets an equal share of these frames, but at least `least`. Rows that share a call are
    padded to the longest one. The total padding can be up to `padding` frames, which cost about as
    much as a separate call would.
    """

    step: int
    least: int
    padding: int

    def shares(self, waiting: Sequence[int]) -> list[int]:
        """Return how many of its `waiting` frames each segment decodes now, in the same order."""
        share = max(self.least, self.step // max(1, len(waiting)))
        left, shares = self.step, []
        for frames in waiting:
            shares.append(min(frames, share, left))
            left -= shares[-1]
        return shares

    def grouped(self, lengths: Sequence[int]) -> list[list[int]]:
        """Group pieces of these lengths into calls. Returns the indices of the pieces in each call,
        with the longest pieces first.
        """
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


# On a CPU, the fixed cost of a call is about the same as the cost of one frame, and larger steps
# cost more per frame (benchmarks/RESULTS.md). On an accelerator, the number of calls determines the
# cost. Its step size was not measured, and was chosen to limit the working memory, which is about 3
# MB per frame in float32.
CPU = DecodePace(step=32, least=4, padding=1)
ACCELERATOR = DecodePace(step=256, least=4, padding=256)
