"""One replica of a stage, step by step: an engine that all sessions share, and its event loop.

A step includes all work that is ready when it begins: one output of every session whose input has
arrived, and rows of prompts, up to `rows_per_step` in total. For a stage that computes audio it
includes the waiting frames. With the last rows of its prompt a session also emits its first output,
if the input has arrived. Input that arrives during a step waits for the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.runtime.session.chunking import next_boundary
from antiphon.values.segment import ChunkPolicy
from antiphon_tools.sizing.measured import MeasuredStage
from antiphon_tools.sizing.simulation.clock import Action, SimulatedClock
from antiphon_tools.sizing.simulation.outcome import SimulatedCall
from antiphon_tools.sizing.simulation.processor import SerialThread, SharedCores

Deliver = Callable[["StageSegment", int, bool], None]
"""Positions of a segment leave; whether they are its last."""
BEGUN = -1
"""In the place of what a step makes of a segment: its rows are taken in from now on."""


@dataclass(slots=True)
class StageSegment:
    """A call's part on one replica: what is to be done, has come, was made and has left."""

    call: SimulatedCall
    rows_left: int
    outputs: int
    # Steps until its rows are taken in, and whether its prompt has come.
    before: int = 0
    prompted: bool = True
    # Positions of the stage before it, and whether these are all.
    came: int = 0
    complete: bool = False
    made: int = 0
    sent: int = 0
    ended: bool = False
    leaves_at: float = 0.0
    leaving: bool = False
    # Called when the steps before its rows are done, and when the engine is done with it.
    begun: Action = field(default=lambda: None)
    release: Action = field(default=lambda: None)


class StageReplica:
    """See the head of this file. `follows` is what its input makes; None: the request alone."""

    def __init__(
        self,
        clock: SimulatedClock,
        stage: MeasuredStage,
        cores: SharedCores,
        policy: ChunkPolicy,
        follows: str | None,
        deliver: Deliver,
    ) -> None:
        self._clock = clock
        self._stage = stage
        self._policy = policy
        self._follows = follows
        self._deliver = deliver
        self._step_s, self._row_s = stage.step_curve, stage.row_curve
        self._segments: dict[int, StageSegment] = {}
        # Whether a step is under way or being put together, and who came meanwhile.
        self._busy = False
        self._look_again = False
        self.engine = SerialThread(cores, stage.nice)
        self.loop = SerialThread(cores)

    @property
    def open(self) -> int:
        """Segments that hold a slot."""
        return len(self._segments)

    @property
    def full(self) -> bool:
        """Whether another would be refused."""
        return self.open >= self._stage.slots

    def admit(self, segment: StageSegment) -> None:
        """Take a segment in; it holds a slot until its end."""
        assert not self.full
        self._segments[segment.call.offered.number] = segment
        self.look()

    def prompt(self, segment: StageSegment) -> None:
        """A segment's prompt has come."""
        segment.prompted = True
        self.look()

    def feed(self, segment: StageSegment, count: int, *, complete: bool) -> None:
        """Positions of the stage before it have come."""
        segment.came += count
        segment.complete = segment.complete or complete
        self.look()

    def look(self) -> None:
        """Begin a step if the engine is idle and something can go on."""
        if self._busy:
            self._look_again = True
            return
        self._busy = True
        stepping, rows = self._take()
        # A segment that ends gives its slot to another, which is admitted meanwhile.
        while not stepping and self._look_again:
            stepping, rows = self._take()
        if not stepping:
            self._busy = False
            return

        def stepped() -> None:
            for segment, makes in stepping:
                if makes == BEGUN:
                    segment.begun()
                elif makes:
                    self._made(segment, makes)
            self._busy = False
            self.look()

        self.engine.work(self._step_s(len(stepping)) + self._row_s(rows), stepped)

    def _take(self) -> tuple[list[tuple[StageSegment, int]], int]:
        """The segments of a step with how many positions each makes, and the step's rows."""
        self._look_again = False
        stepping, rows, most = [], 0, self._stage.rows_per_step
        for segment in tuple(self._segments.values()):
            if self._stage.makes == "audio":
                waiting = min(segment.came - segment.made, most - rows)
                if waiting > 0:
                    stepping.append((segment, waiting))
                    rows += waiting
                elif segment.complete and segment.came == segment.made and not segment.ended:
                    self._end(segment)
            elif not segment.prompted:
                continue
            elif segment.before:
                segment.before -= 1
                stepping.append((segment, 0 if segment.before else BEGUN))
            elif segment.rows_left:
                part = min(segment.rows_left, most - rows)
                if part > 0:
                    segment.rows_left -= part
                    rows += part
                    # The step that takes in the last row draws, too, if it knows what to say.
                    draws = not segment.rows_left and self._can_draw(segment)
                    stepping.append((segment, int(draws)))
            elif self._can_draw(segment):
                stepping.append((segment, 1))
        return stepping, rows

    def _can_draw(self, segment: StageSegment) -> bool:
        """Whether the next position, or the end, can be drawn."""
        if self._follows is None:
            return True
        return segment.came > segment.made or segment.complete

    def _made(self, segment: StageSegment, count: int) -> None:
        segment.made += count
        if self._stage.makes == "audio":
            self._deliver(segment, count, False)
            return
        # One draw more than there are positions finds the end.
        if segment.made > segment.outputs:
            segment.made = segment.outputs
            segment.ended = True
            self._leave(segment)
            self._end(segment)
        elif self._due(segment):
            self._leave(segment)

    def _due(self, segment: StageSegment) -> bool:
        if self._stage.makes == "tokens":
            return True
        return segment.made >= next_boundary(segment.sent, self._policy)

    def _leave(self, segment: StageSegment) -> None:
        """What was made leaves, if the pace allows it, else with what comes until then."""
        if segment.leaving:
            return
        segment.leaving = True
        self._clock.at(segment.leaves_at, lambda: self._left(segment))

    def _left(self, segment: StageSegment) -> None:
        segment.leaving = False
        segment.leaves_at = self._clock.now + self._stage.pace_s
        count, segment.sent = segment.made - segment.sent, segment.made
        self._deliver(segment, count, segment.ended)

    def _end(self, segment: StageSegment) -> None:
        segment.ended = True
        if self._stage.makes == "audio":
            self._deliver(segment, 0, True)
        # The slot is free before anybody hears of it: another may take it at once.
        del self._segments[segment.call.offered.number]
        segment.release()
