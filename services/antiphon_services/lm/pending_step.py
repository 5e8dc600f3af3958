"""A step that has been launched but not read yet.

Draws belong to segments, not to slots. By the time a draw is read, its segment may have ended or
been released. In this case, the draw is dropped, because the slot may already have another owner.
The segment may also have been put on hold. Its draw then waits in the segment without delaying any
other segment. As long as a draw waits, the engine doesn't launch another step for its segment, so
there is never more than one waiting draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from antiphon.transport.device_edge import Mark
from antiphon_services.lm.frames import FrameSegment


class DrawInFlight(Protocol):
    """A segment's draw on its way to the host. It is complete when `mark` is reached, or
    immediately if `mark` is None.
    """

    @property
    def mark(self) -> Mark | None:
        """The mark that is reached when the draw is complete."""

    def read(self) -> Any:
        """Return the draw. The mark must already have been reached."""


class PendingStep:
    """A step that makes draws for some segments."""

    def __init__(self, draws: Sequence[tuple[FrameSegment[Any], DrawInFlight]]) -> None:
        self._draws = draws
        # Draws from the same call share a mark, so each mark only needs to be queried once.
        self._marks = {draw.mark for _, draw in draws}

    @property
    def ready(self) -> bool:
        """Whether the device reports that all draws are complete. This is false if there are no
        marks, because then nothing is reported.
        """
        return all(mark is not None and mark.query() for mark in self._marks)

    def collect(self) -> None:
        """Pass each draw to its segment. This waits until the step's draws have been copied, but
        not for any later step.
        """
        for mark in self._marks:
            if mark is not None:
                mark.synchronize()
        for segment, draw in self._draws:
            segment.waiting = draw.read()
