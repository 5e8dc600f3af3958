"""An open segment of a stage. It consists of output edges, clocks, and the input that it is waiting
for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from antiphon.errors import DataLoss
from antiphon.runtime.engine import Completed, Emitted, InputChunk, SegmentSettings
from antiphon.runtime.session.credit import Intake
from antiphon.runtime.session.facts import SegmentStatus
from antiphon.runtime.session.instructions import Destination, Limit, Report
from antiphon.runtime.session.output_edge import OutputEdge, Piece
from antiphon.runtime.session.output_flow import OutputFlow
from antiphon.values.segment import SegmentKey


class Segment:
    """The part of a session's state that lasts for one segment.

    `in_engine` is true from the moment the segment is admitted until the engine has completed it.
    The segment itself remains until all of its output has been sent. `fed` is the number of chunks
    that have been passed to the engine. A live segment `waits` without a slot until its first chunk
    arrives and is `listening` until its input is complete. A segment is `held` while its output is
    waiting for credit. During that time, it doesn't step, and its input isn't considered stalled.
    """

    def __init__(
        self,
        key: SegmentKey,
        settings: SegmentSettings,
        outlets: dict[str, OutputEdge],
        open_inputs: set[str],
        intakes: dict[str, Intake],
        flow: OutputFlow,
        *,
        now: float,
        deadline_s: float,
    ) -> None:
        """Create a segment at `now`.

        Its deadline is `deadline_s` seconds later. For a live segment, the time starts at the end
        of the input. If `deadline_s` is 0, there is no deadline.
        """
        self.key = key
        self.settings = settings
        self.waits = False
        self.listening = settings.live
        self.open_inputs = open_inputs
        self.intakes = intakes
        self.in_engine = False
        self.fed = 0
        self.flow = flow
        self.completed: Completed | None = None
        self.awaited = ""
        self.steppable = self.held = False
        self.busy_s = 0.0
        self.deadline = now + deadline_s if deadline_s and not settings.live else None
        self._deadline_s = deadline_s
        self.waiting_since = now
        self.told_at = now
        self.steps_told_at = -math.inf
        self._outlets = outlets
        self._paced = [(name, outlet) for name, outlet in outlets.items() if outlet.paced]
        self._governed = [outlet for outlet in outlets.values() if outlet.governed]
        self._opened_at = now
        self._begun: set[str] = set()
        self._accepted = 0
        self._first_input_at = 0.0
        self._first_output_at = 0.0
        self._last_output_at = 0.0

    def note_input(self, chunk: InputChunk, now: float) -> None:
        """Record input and restart the stall clock.

        Raises `DataLoss` if a chunk arrives after its edge has ended, or if a priming chunk arrives
        after another chunk.
        """
        if chunk.edge not in self.open_inputs:
            raise DataLoss(
                f"{chunk.edge}: received a chunk after the end of the edge", edge=chunk.edge
            )
        if not chunk.prime:
            self._begun.add(chunk.edge)
        elif chunk.edge in self._begun or chunk.position:
            raise DataLoss(
                f"{chunk.edge}: a chunk that primes must be the first one, at position 0",
                edge=chunk.edge,
            )
        self.waiting_since = now
        self._first_input_at = self._first_input_at or now

    def finish_listening(self, now: float) -> None:
        """Mark the input of a live segment as complete. This starts the stall clock and the
        deadline.
        """
        if self.listening:
            self.listening = False
            self.waiting_since = now
            self.deadline = now + self._deadline_s if self._deadline_s else None

    def note_standing(self, standing: SegmentStatus, now: float) -> None:
        """Record which input edge the engine is waiting for and how many chunks it had accepted
        when it reported this.
        """
        edge, self._accepted = standing.awaited, standing.accepted
        self.steppable = edge is None
        if edge is not None and edge != self.awaited:
            self.waiting_since = now
        self.awaited = edge or ""

    @property
    def caught_up(self) -> bool:
        """Whether `awaited` takes into account all chunks that were passed to the engine."""
        return self._accepted == self.fed

    @property
    def stall_clock_runs(self) -> bool:
        """Whether input is due. It isn't while output is waiting for credit, or once the engine has
        completed the segment.
        """
        return (self.in_engine or self.waits) and not self.steppable and not self.held

    @property
    def drained(self) -> bool:
        """Whether all output has been sent."""
        return not self.undrained_outputs()

    def limits(self) -> list[Limit]:
        """Return how far the engine may advance on each edge that is limited by credit."""
        return [
            Limit(self.key, edge, outlet.limit)
            for edge, outlet in self._outlets.items()
            if outlet.limit is not None
        ]

    def push(self, emitted: Emitted, now: float) -> list[Piece]:
        """Add output from the engine and return the pieces that can be sent now. The result is
        empty if the edge has no destination.
        """
        outlet = self._outlets.get(emitted.edge)
        if outlet is None:
            return []
        if emitted.prime:
            return outlet.prime(emitted)
        if emitted.tensors:
            self._first_output_at = self._first_output_at or now
            self._last_output_at = now
        was_held = outlet.held
        pieces = outlet.push(emitted.position, emitted.tensors, emitted.finish_reason, now)
        if outlet.held != was_held:
            self._note_held()
        return pieces

    def grant(self, edge: str, destination: Destination, positions: int, now: float) -> list[Piece]:
        """Apply credit and return the pieces that can be sent now.

        If the segment had been waiting only for credit, its stall clock restarts.
        """
        outlet, was_held = self._outlets[edge], self.held
        outlet_held = outlet.held
        pieces = outlet.grant(destination, positions)
        if outlet.held != outlet_held:
            self._note_held()
        if was_held and not self.held:
            self.waiting_since = now
        return pieces

    def _note_held(self) -> None:
        """Record that an edge has started or stopped waiting for credit."""
        self.held = any(outlet.held for outlet in self._governed)
        self.flow.note()

    def told(self, edge: str, pieces: Iterable[Piece], now: float) -> None:
        """Record that pieces are being sent to the client on an edge."""
        self.told_at = now
        self.flow.left(edge, pieces, now)

    @property
    def next_due(self) -> float | None:
        """The next time at which paced output is due or the deadline expires. None if there is
        neither.
        """
        moment = self.deadline
        for _, outlet in self._paced:
            due_at = outlet.due_at
            if due_at is not None and (moment is None or due_at < moment):
                moment = due_at
        return moment

    def due(self, now: float) -> Iterator[tuple[str, list[Piece]]]:
        """Yield every paced edge whose interval has passed, together with the output that
        is due.
        """
        return ((name, outlet.release_due(now)) for name, outlet in self._paced)

    def unfinished_outputs(self) -> list[str]:
        """Return the output edges that the engine hasn't ended yet."""
        return [name for name, outlet in self._outlets.items() if not outlet.finished]

    def undrained_outputs(self) -> list[str]:
        """Return the output edges with unsent output."""
        return [name for name, outlet in self._outlets.items() if not outlet.drained]

    def report(self, completed: Completed) -> Report:
        """Return the segment's counts and times."""
        return Report(
            key=self.key,
            finish_reason=completed.finish_reason,
            input_positions=completed.input_positions,
            input_audio_positions=completed.input_audio_positions,
            input_image_positions=completed.input_image_positions,
            input_cached_positions=completed.input_cached_positions,
            output_positions=completed.output_positions,
            first_input_s=self._since_open(self._first_input_at),
            first_output_s=self._since_open(self._first_output_at),
            last_output_s=self._since_open(self._last_output_at),
            busy_s=self.busy_s,
        )

    def _since_open(self, moment: float) -> float:
        return moment - self._opened_at if moment else 0.0
