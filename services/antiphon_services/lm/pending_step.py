"""A step that was launched and not read yet.

Draws belong to segments, not to slots. A segment may have ended or left in the meantime: its draw
is dropped, and its slot may have another owner. A segment may have become held: its draw waits in
it and delays no other segment. An engine launches no step for a segment with a draw that waits, so
there is never a second one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from antiphon.transport.device_edge import Mark
from antiphon_services.lm.frames import FrameSegment


class DrawInFlight(Protocol):
    """One segment's draw; it is complete when `mark` is reached, or at once if that is None."""

    @property
    def mark(self) -> Mark | None:
        """When the draw is complete."""

    def read(self) -> Any:
        """The draw; its mark has been reached."""


class PendingStep:
    """A step that draws for some segments."""

    def __init__(self, draws: Sequence[tuple[FrameSegment[Any], DrawInFlight]]) -> None:
        self._draws = draws
        # Draws of one call have one mark; each is asked once.
        self._marks = {draw.mark for _, draw in draws}

    @property
    def ready(self) -> bool:
        """Whether the device reports all draws as complete. Without marks it reports nothing."""
        return all(mark is not None and mark.query() for mark in self._marks)

    def collect(self) -> None:
        """Give each segment its draw. Waits for the copies of this step and for no later step."""
        for mark in self._marks:
            if mark is not None:
                mark.synchronize()
        for segment, draw in self._draws:
            segment.waiting = draw.read()
