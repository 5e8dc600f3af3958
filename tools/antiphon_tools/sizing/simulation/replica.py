"""Simulates a stage replica step by step. It consists of an event loop and of an engine that all
sessions share.

A step includes all work that is ready when it begins: one output for every session whose input has
arrived, and up to `rows_per_step` prompt rows in total. For a stage that generates audio, it
includes the waiting frames. In the step that processes the last rows of its prompt, a session also
emits its first output, provided that the input has arrived. Input that arrives during a step waits
for the next one.
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
"""Sends positions of a segment. The last argument is true if these are the last positions."""
BEGUN = -1
"""This is passed instead of a number of positions to indicate that the segment's rows are now being
processed.
"""


@dataclass(slots=True)
class StageSegment:
    """The part of a call that runs on one replica, with its progress."""

    call: SimulatedCall
    rows_left: int
    outputs: int
    # The number of steps before its rows are processed, and whether its prompt has arrived.
    before: int = 0
    prompted: bool = True
    # The positions received from the previous stage, and whether they are complete.
    came: int = 0
    complete: bool = False
    made: int = 0
    sent: int = 0
    ended: bool = False
    leaves_at: float = 0.0
    leaving: bool = False
    # Called when the steps before its rows are complete, and when the engine has finished the
    # segment.
    begun: Action = field(default=lambda: None)
    release: Action = field(default=lambda: None)


class StageReplica:
    """A replica, as described in the module docstring.

    `follows` is the type of output that its input contains. It is None if the input is only the
    request.
    """

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
        # Whether a step is running or being prepared, and whether input has arrived in the
        # meantime.
        self._busy = False
        self._look_again = False
        self.engine = SerialThread(cores, stage.nice)
        self.loop = SerialThread(cores)

    @property
    def open(self) -> int:
        """The number of segments that hold a slot."""
        return len(self._segments)

    @property
    def full(self) -> bool:
        """Whether another segment would be rejected."""
        return self.open >= self._stage.slots

    def admit(self, segment: StageSegment) -> None:
        """Add a segment, which holds a slot until it ends."""
        assert not self.full
        self._segments[segment.call.offered.number] = segment
        self.look()

    def prompt(self, segment: StageSegment) -> None:
        """Record that the prompt of a segment has arrived."""
        segment.prompted = True
        self.look()

    def feed(self, segment: StageSegment, count: int, *, complete: bool) -> None:
        """Record that positions from the previous stage have arrived."""
        segment.came += count
        segment.complete = segment.complete or complete
        self.look()

    def look(self) -> None:
        """Start a step if the engine is idle and there is work."""
        if self._busy:
            self._look_again = True
            return
        self._busy = True
        stepping, rows = self._take()
        # A segment that ends releases its slot, so another segment may be admitted in the meantime.
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
        """Select the work of a step.

        Returns the segments with their numbers of positions and the total number of rows.
        """
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
                    # A step that processes the last row also samples a position if its input has
                    # arrived.
                    draws = not segment.rows_left and self._can_draw(segment)
                    stepping.append((segment, int(draws)))
            elif self._can_draw(segment):
                stepping.append((segment, 1))
        return stepping, rows

    def _can_draw(self, segment: StageSegment) -> bool:
        """Return whether the next position, or the end, can be sampled."""
        if self._follows is None:
            return True
        return segment.came > segment.made or segment.complete

    def _made(self, segment: StageSegment, count: int) -> None:
        segment.made += count
        if self._stage.makes == "audio":
            self._deliver(segment, count, False)
            return
        # The end is found by sampling one more time than there are positions.
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
        """Send the available positions.

        If the pace does not permit this yet, they are sent later, together with further positions.
        """
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
        # Release the slot before reporting the end, so that another segment can use it immediately.
        del self._segments[segment.call.offered.number]
        segment.release()
