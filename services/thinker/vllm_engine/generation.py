"""One segment's request to vLLM, and what has come of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.chunk import Tensor
from antiphon.errors import DataLoss
from antiphon.segment import FinishReason
from services.text.stopping import ReplyText
from services.thinker.prompt import PreparedPrompt
from services.thinker.reply_rows import ReplyRows


@dataclass(slots=True)
class VllmGeneration:
    """A prompt that vLLM works on as request `number`, and the reply to it.

    `rows_due` counts the hidden rows that have still to come, of those at
    `row_positions`, and `reply_rows` are there if those of the reply are needed; `finish` is set
    with the reply's last id, and `overdue_at` is when waiting for rows ends from then on, by the
    monotonic clock.
    """

    number: int
    prompt: PreparedPrompt
    reply: ReplyText
    row_positions: npt.NDArray[np.intp]
    rows_due: int
    reply_rows: ReplyRows | None = None
    reused: int = 0
    finish: FinishReason | None = None
    overdue_at: float | None = None

    def take_rows(self, start: int, rows: Tensor) -> npt.NDArray[np.intp]:
        """The positions of rows that came from `start` on. Raises `DataLoss` for a gap."""
        first = len(self.row_positions) - self.rows_due
        positions = self.row_positions[first : first + len(rows)]
        if positions.tolist() != list(range(start, start + len(rows))):
            raise DataLoss(f"hidden rows from {start} on came when {positions[:1]} was next")
        self.rows_due -= len(rows)
        return positions

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come."""
        spoken = self.reply_rows is None or self.reply_rows.complete
        return self.finish is not None and not self.rows_due and spoken
