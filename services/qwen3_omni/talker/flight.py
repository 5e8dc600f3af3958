"""Who takes part in a step that was launched and not read yet.

Frames are given to segments, not to slots: one may have ended or left meanwhile, then its
frame goes nowhere, and its slot may be another's. One may have become held: then its frame
waits in it, and nobody else for that. No step is launched for a segment with a frame that
waits, so that there is never a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.qwen3_omni.talker.readback import Readback
from services.qwen3_omni.talker.segment import TalkerSegment


class Flight:
    """A step that draws a frame of each of `segments`, in the order of `readback`."""

    def __init__(self, segments: Sequence[TalkerSegment], readback: Readback) -> None:
        self._segments, self._readback = segments, readback

    @property
    def landed(self) -> bool:
        """Whether the device says that the frames are there; see `Readback`."""
        return self._readback.landed

    def land(self) -> None:
        """Give every segment its frame, waiting for it."""
        for segment, drawn in zip(self._segments, self._readback.read(), strict=True):
            segment.waiting = drawn
