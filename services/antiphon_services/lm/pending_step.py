"""A step that has been launched but not read yet.

Draws belong to segments, not to slots. A segment may have ended or been released in the meantime.
In this case, its draw is dropped, and its slot may already have another owner. A segment may also
have become held. Its draw then waits in the segment and does not delay any other segment. While a
draw waits, the engine launches no further step for its segment, so there is never a second one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from antiphon.transport.device_edge import Mark
from antiphon_services.lm.frames import FrameSegment


class DrawInFlight(Protocol):
    """The draw of one segment. It is complete when `mark` is reached, or immediately if `mark` is
    None.
    """

    @property
    def mark(self) -> Mark | None:
        """The mark that is reached when the draw is complete."""

    def read(self) -> Any:
        """Return the draw. Its mark must have been reached."""


class PendingStep:
    """A step that draws for some segments."""

    def __init__(self, draws: Sequence[tuple[FrameSegment[Any], DrawInFlight]]) -> None:
        self._draws = draws
        # All draws of one call have the same mark. Each mark is queried once.
        self._marks = {draw.mark for _, draw in draws}

    @property
    def ready(self) -> bool:
        """Whether the device reports that all draws are complete. If there are no marks, it does
        not report anything.
        """
        return all(mark is not None and mark.query() for mark in self._marks)

    def collect(self) -> None:
        """Pass each draw to its segment. This waits for the copies of this step, but not for any
        later step.
        """
        for mark in self._marks:
            if mark is not None:
                mark.synchronize()
        for segment, draw in self._draws:
            segment.waiting = draw.read()
