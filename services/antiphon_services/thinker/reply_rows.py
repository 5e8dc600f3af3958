"""The hidden rows of a reply, for a talker that reads rows instead of IDs.

Each ID's row is sent exactly once, in order, as soon as it is available and the ID may be spoken.
Normally a row becomes available one step after its ID, but it may also take a different path and
arrive earlier. The last ID of a reply has no row. Rows are dropped if their IDs are not spoken, as
in a function call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason
from antiphon_services.text.stopping import ReleasedText


class ReplyRows:
    """The rows [hidden] of one reply. `complete` becomes true once the last row has been sent."""

    def __init__(self) -> None:
        self._waiting: deque[Tensor] = deque()
        self._left = 0
        self._spoken = 0
        self._finish: FinishReason | None = None
        self.complete = False

    def release(self, release: ReleasedText) -> None:
        """Allow more IDs to be spoken and record whether they are the last ones of the reply."""
        self._spoken += len(release.spoken)
        self._finish = self._finish or release.speech_finish

    def come(self, start: int, rows: Tensor) -> None:
        """Add rows [n, hidden] for the IDs from `start` to `start + n`. Raises `DataLoss` if there
        is a gap.
        """
        if self.complete:
            return
        following = self._left + len(self._waiting)
        if start != following:
            raise DataLoss(
                f"received hidden rows of the reply from {start} on instead of {following}"
            )
        self._waiting.extend(rows)

    def leave(self) -> tuple[Sequence[Tensor], FinishReason | None]:
        """Return the rows that can be sent now. The finish reason is included with the last
        rows.
        """
        count = min(len(self._waiting), self._spoken - self._left)
        self._left += count
        leaving = [self._waiting.popleft() for _ in range(count)]
        if self.complete or self._finish is None or self._left < self._spoken:
            return leaving, None
        self.complete = True
        return leaving, self._finish
