"""Runs an engine in rounds. In each round, commands are applied and then the engine performs one
step. This happens on the engine thread.

Output limits are enforced here rather than on the event loop, so a segment stops exactly at its
limit even if the event loop is running late.

If a step raises an exception, all segments fail, and the engine continues with new ones. There are
three cases in which the engine gives up and the process exits: the error has corrupted the device
(`is_fatal`), a segment can't be released, or `FAILURES_TO_GIVE_UP` steps in a row have failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from antiphon.errors import AntiphonError, Internal, Unavailable
from antiphon.runtime.engine import (
    Completed,
    CountingEngine,
    Emitted,
    Engine,
    EngineEvent,
    Failed,
    PreparingEngine,
    never_fatal,
)
from antiphon.runtime.session.facts import EngineStepped, SegmentStatus
from antiphon.runtime.session.instructions import Admit, EngineCommand, Feed, Limit, Release
from antiphon.values.segment import FinishReason, SegmentKey

FAILURES_TO_GIVE_UP = 3
# How long a restart is expected to take, in seconds. Clients receive this as the retry delay.
RESTART_S = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """A segment that has been admitted.

    It keeps track of four things: the accepted chunks, the positions that have been produced and
    that are allowed on each output edge, the engine time used, and the last status that the event
    loop has received.
    """

    accepted: int = 0
    made: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    held: bool = False
    busy_s: float = 0.0
    reported: SegmentStatus | None = None

    def note_limits(self) -> None:
        """Update `held`, which is true if any output edge has reached its limit."""
        at_limit = [self.made.get(edge, 0) >= limit for edge, limit in self.limits.items()]
        self.held = True in at_limit


class EngineRounds:
    """An engine and its admitted segments. This class is not thread-safe.

    `counted_by` maps an output edge to the tensor whose length is the number of positions.
    `is_fatal` is described in `LoadedStage`.
    """

    def __init__(
        self,
        engine: Engine,
        counted_by: Mapping[str, str],
        is_fatal: Callable[[Exception], bool] = never_fatal,
    ) -> None:
        self._engine = engine
        self._preparing = engine if isinstance(engine, PreparingEngine) else None
        self._counting = engine if isinstance(engine, CountingEngine) else None
        self._counted_by = counted_by
        self._is_fatal = is_fatal
        self._failures = 0
        self._queued: frozenset[SegmentKey] = frozenset()
        self._admitted: dict[SegmentKey, _Running] = {}
        # The segments that were cancelled and released in this round, with the engine time they
        # used.
        self._cancelled: dict[SegmentKey, tuple[Completed, float]] = {}

    @property
    def has_segments(self) -> bool:
        """Whether any segment is admitted. This can be called from any thread."""
        return bool(self._admitted)

    @property
    def steppable(self) -> bool:
        """Whether a round would perform a step even without new commands."""
        return any(map(self._can_step, self._admitted))

    def run(self, commands: Iterable[EngineCommand]) -> EngineStepped:
        """Apply all commands and then perform one step."""
        touched: set[SegmentKey] = set()
        events: list[EngineEvent] = []
        self._cancelled.clear()
        try:
            for command in commands:
                events += self._apply(command, touched)
            return self._step(events, touched)
        except Exception as error:
            log.exception("the engine failed")
            return self._lost(events, error)

    def _apply(self, command: EngineCommand, touched: set[SegmentKey]) -> list[EngineEvent]:
        """Apply a command. If the engine refuses it, its segment fails.

        Errors that leave the engine in an unknown state, such as a failed release or a lost device,
        are raised.
        """
        try:
            match command:
                case Admit(key, settings):
                    self._engine.admit(key, settings)
                    self._admitted[key] = _Running()
                    touched.add(key)
                case Feed(key, chunk) if key in self._admitted:
                    self._engine.accept(key, chunk)
                    self._admitted[key].accepted += 1
                    touched.add(key)
                case Limit(key, edge, positions) if key in self._admitted:
                    running = self._admitted[key]
                    running.limits[edge] = positions
                    running.note_limits()
                case Release(key, cancelled):
                    cost = self._cost(key) if cancelled else None
                    if self._admitted.pop(key, None) is not None:
                        touched.discard(key)
                        self._engine.release(key)
                    if cost is not None:
                        self._cancelled[key] = cost
        except AntiphonError as error:
            return [Failed(command.key, error)]
        except Exception as error:
            if isinstance(command, Release) or self._is_fatal(error):
                raise
            log.exception("engine refused %s", type(command).__name__)
            return [Failed(command.key, Internal(f"{type(error).__name__}: {error}"))]
        return []

    def _step(self, events: list[EngineEvent], touched: set[SegmentKey]) -> EngineStepped:
        """Perform a step if any segment can take part in it and collect the status of all segments
        in `touched`.
        """
        held = frozenset({key for key, running in self._admitted.items() if running.held})
        ready = [key for key in self._admitted if key not in held and self._can_step(key)]
        step_s = 0.0
        if ready:
            started = time.perf_counter()
            made = self._engine.step(held)
            step_s = time.perf_counter() - started
            self._failures = 0
            for key in ready:
                self._admitted[key].busy_s += step_s / len(ready)
            self._count(made)
            events += made
        moved_up = self._moved_up()
        worked_on = moved_up.union(ready)
        failed: set[SegmentKey] = set()
        silent, busy_s = set(worked_on), {}
        for event in events:
            silent.discard(event.key)
            if isinstance(event, Failed):
                failed.add(event.key)
            elif isinstance(event, Completed) and event.key in self._admitted:
                busy_s[event.key] = self._admitted[event.key].busy_s
        standing = self._standing((touched | worked_on) - failed, silent)
        for key, (_, spent_s) in self._cancelled.items():
            busy_s[key] = spent_s
        released = tuple(cost for cost, _ in self._cancelled.values()) if self._cancelled else ()
        return EngineStepped(
            tuple(events), standing, busy_s, step_s, len(ready), worked_on, released
        )

    def _cost(self, key: SegmentKey) -> tuple[Completed, float]:
        """Return a segment's current counts and engine time."""
        running = self._admitted.get(key)
        if running is None or self._counting is None:
            return Completed(key, FinishReason.CANCELLED, 0, 0), running.busy_s if running else 0.0
        return self._counting.so_far(key), running.busy_s

    def _standing(
        self, keys: Iterable[SegmentKey], silent: Collection[SegmentKey]
    ) -> dict[SegmentKey, SegmentStatus]:
        """Return the status of every segment whose status has changed since it was last reported.

        Segments in `silent` are always included. The engine worked on them without producing
        output, so this report is the only sign that they are making progress.
        """
        news = {}
        for key in keys:
            if (running := self._admitted.get(key)) is None:
                continue
            standing = SegmentStatus(self._engine.awaited_edge(key), running.accepted)
            if standing != running.reported or key in silent:
                news[key] = running.reported = standing
        return news

    def _moved_up(self) -> frozenset[SegmentKey]:
        """Return the segments that are still being prepared when another segment is ready."""
        if self._preparing is None:
            return frozenset()
        before, self._queued = (
            self._queued,
            frozenset(filter(self._preparing.prepares, self._admitted)),
        )
        return self._queued if (before & self._admitted.keys()) - self._queued else frozenset()

    def _can_step(self, key: SegmentKey) -> bool:
        if self._admitted[key].held or self._engine.awaited_edge(key) is not None:
            return False
        return self._preparing is None or not self._preparing.prepares(key)

    def _count(self, events: Iterable[EngineEvent]) -> None:
        """Add the positions that were emitted to the totals by segment and edge."""
        for event in events:
            if not isinstance(event, Emitted) or event.prime:
                continue
            if (running := self._admitted.get(event.key)) is not None:
                counted = event.tensors.get(self._counted_by.get(event.edge, ""), ())
                running.made[event.edge] = running.made.get(event.edge, 0) + len(counted)
                if running.limits:
                    running.note_limits()

    def _lost(self, events: list[EngineEvent], error: Exception) -> EngineStepped:
        """Release everything after an exception, because the state of the engine is unknown."""
        self._failures += 1
        given_up = self._is_fatal(error) or self._failures >= FAILURES_TO_GIVE_UP
        fatal = given_up or not self._released_all()
        self._admitted.clear()
        what = f"{type(error).__name__}: {error}"
        fault = engine_at_its_end(what) if fatal else Internal(what)
        return EngineStepped(tuple(events), error=fault, fatal=fatal)

    def _released_all(self) -> bool:
        try:
            for key in self._admitted:
                self._engine.release(key)
        except Exception:
            log.exception("the engine failed to release its resources")
            return False
        return True


def engine_at_its_end(what: str) -> Unavailable:
    """Return the error that ends every session when the engine gives up."""
    return Unavailable(
        f"the engine can't continue ({what}), so the stage is exiting; try again after it has "
        "restarted",
        retry_after_s=RESTART_S,
    )
