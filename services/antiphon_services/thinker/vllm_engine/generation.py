"""A segment's requests to vLLM and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason
from antiphon_services.text.stopping import ReplyText
from antiphon_services.thinker.audio import AudioWindow
from antiphon_services.thinker.listening import HeardPrompt
from antiphon_services.thinker.prompt import Ids, PreparedPrompt
from antiphon_services.thinker.reply_rows import ReplyRows
from antiphon_services.thinker.thinker_segment import Positions


@dataclass(slots=True)
class VllmGeneration:
    """A prompt that vLLM processes, together with its reply.

    While a prompt `is_open`, it grows, and each new request adds the new part to vLLM's prefix
    cache. The last request, `replies_to`, generates the reply. `numbers` contains the numbers of
    all requests with pending results. `ordered` contains the IDs of the running request, which are
    the prompt followed by the `known` reply IDs. `prefilled` is the number of positions that were
    computed while the prompt was open. `told` is the number of prompt IDs that have been sent, and
    `found` is the number of positions that were already in the cache at the beginning.

    If `wants_rows` is true, the hidden rows at `row_positions` are needed. The first `rows_asked`
    of them have been requested, and the first `rows_taken` have been received. `reply_rows` is set
    if the reply's rows are needed. `finish` is set together with the last ID of the reply.
    `overdue_at` is then the deadline for the remaining rows, as a time on the monotonic clock.
    """

    prompt: PreparedPrompt
    reply: ReplyText
    row_positions: Positions
    recordings: Sequence[Sequence[AudioWindow]]
    wants_rows: bool = False
    reply_rows: ReplyRows | None = None
    is_open: bool = False
    known: Sequence[int] = ()
    numbers: list[int] = field(default_factory=list)
    replies_to: int | None = None
    ordered: Ids | None = None
    prefilled: int = 0
    told: int = 0
    rows_asked: int = 0
    rows_taken: int = 0
    found: int | None = None
    finish: FinishReason | None = None
    overdue_at: float | None = None
    _growing: list[tuple[int, AudioWindow]] = field(default_factory=list)

    @property
    def reused(self) -> int:
        """The number of positions that the first request found in the prefix cache."""
        return self.found or 0

    @property
    def windows(self) -> list[list[AudioWindow]]:
        """The windows of all recordings. The last window may still grow."""
        growing = [window for _, window in self._growing]
        return [*map(list, self.recordings), *([growing] if growing else [])]

    def hear(
        self, heard: HeardPrompt, row_positions: Positions, windows: Sequence[AudioWindow]
    ) -> bool:
        """Extend the prompt with `heard` and its `windows`.

        Returns whether the running request has become invalid. If so, its results must be dropped.
        """
        kept = [each for each in self._growing if each[0] < heard.kept]
        begins = [at for at, _ in heard.windows]
        self._growing = [*kept, *zip(begins, windows, strict=True)]
        reach = max(self.prefilled, 0 if self.ordered is None else len(self.ordered))
        self.prompt, self.row_positions = heard.prompt, row_positions
        self.is_open = heard.is_open
        if heard.kept >= reach:
            return False
        self.prefilled = min(self.prefilled, heard.kept)
        if self.found is not None:
            self.found = min(self.found, heard.kept)
        kept_rows = int(np.searchsorted(row_positions, heard.kept))
        self.rows_asked = self.rows_taken = min(self.rows_taken, kept_rows)
        self.ordered = None
        return True

    def take_rows(self, start: int, rows: Tensor) -> npt.NDArray[np.intp]:
        """Return the positions of the received rows, which begin at `start`. Raises `DataLoss` if
        there is a gap.
        """
        positions = self.row_positions[self.rows_taken : self.rows_taken + len(rows)]
        if positions.tolist() != list(range(start, start + len(rows))):
            raise DataLoss(f"received hidden rows from {start} on instead of {positions[:1]}")
        self.rows_taken += len(rows)
        return positions

    @property
    def all_rows_taken(self) -> bool:
        """Whether the rows at all `row_positions` have been received and no more will follow."""
        return self.rows_taken == len(self.row_positions) and not self.is_open

    @property
    def complete(self) -> bool:
        """Whether all results have been received."""
        spoken = self.reply_rows is None or self.reply_rows.complete
        rows = self.all_rows_taken or not self.wants_rows
        return self.finish is not None and rows and spoken
