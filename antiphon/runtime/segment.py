"""One open turn on a stage: its outlets, its clocks, what it still waits for."""

from __future__ import annotations

from antiphon.runtime.engine import Completed, Emitted
from antiphon.runtime.instructions import Report
from antiphon.runtime.outlet import Outlet, Piece
from antiphon.segment import SegmentKey


class Segment:
    """Everything that starts and ends with a turn, so that nothing of it outlives it."""

    def __init__(
        self,
        key: SegmentKey,
        outlets: dict[str, Outlet],
        open_inputs: set[str],
        *,
        now: float,
        deadline: float | None,
    ) -> None:
        self.key = key
        self.open_inputs = open_inputs
        self.awaited = ""
        self.deadline = deadline
        self.waiting_since = now
        self._outlets = outlets
        self._opened_at = now
        self._first_input_at = 0.0
        self._first_output_at = 0.0
        self._last_output_at = 0.0
        self._busy_s = 0.0

    def note_input(self, now: float) -> None:
        """Input came: the stall clock starts again."""
        self.waiting_since = now
        self._first_input_at = self._first_input_at or now

    def note_awaited(self, edge: str | None, now: float) -> None:
        """The engine says what it waits for; None when it can step."""
        if edge is not None and edge != self.awaited:
            self.waiting_since = now
        self.awaited = edge or ""

    def note_busy(self, seconds: float) -> None:
        """Add engine time."""
        self._busy_s += seconds

    def push(self, emitted: Emitted, now: float) -> list[Piece]:
        """The pieces that an emission makes due; none for an edge that goes nowhere."""
        outlet = self._outlets.get(emitted.edge)
        if outlet is None:
            return []
        if emitted.tensors:
            self._first_output_at = self._first_output_at or now
            self._last_output_at = now
        return outlet.push(emitted.position, emitted.tensors, emitted.finish_reason)

    def unfinished_outputs(self) -> list[str]:
        """Output edges whose end the engine has not emitted."""
        return [name for name, outlet in self._outlets.items() if not outlet.finished]

    def report(self, completed: Completed) -> Report:
        """What the segment cost."""
        return Report(
            key=self.key,
            finish_reason=completed.finish_reason,
            input_positions=completed.input_positions,
            input_audio_positions=completed.input_audio_positions,
            input_cached_positions=completed.input_cached_positions,
            output_positions=completed.output_positions,
            first_input_s=self._since_open(self._first_input_at),
            first_output_s=self._since_open(self._first_output_at),
            last_output_s=self._since_open(self._last_output_at),
            busy_s=self._busy_s,
        )

    def _since_open(self, moment: float) -> float:
        return moment - self._opened_at if moment else 0.0
