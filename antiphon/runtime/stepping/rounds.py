"""Rounds of an engine: carry out commands, then step once. The engine thread's work.

Limits on output are kept here and not on the loop, so that a segment stops exactly
there, however late the loop is.

A step that raises loses every segment, and the engine goes on with new ones. It is at
its end, and so is the process, when the error has poisoned its device (`is_fatal`), when
it cannot even release what it had, or when `FAILURES_TO_GIVE_UP` steps in a row raised.
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
# A guess at how long a restart takes, for whoever wants to try again.
RESTART_S = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    """An admitted segment: chunks accepted; positions made and allowed, by output edge;
    engine time spent on it; what the loop was last told of it."""

    accepted: int = 0
    made: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    held: bool = False
    busy_s: float = 0.0
    told: SegmentStatus | None = None

    def note_limits(self) -> None:
        """Whether an output edge has come to its limit; after each change of either."""
        at_limit = [self.made.get(edge, 0) >= limit for edge, limit in self.limits.items()]
        self.held = True in at_limit


class EngineRounds:
    """An engine with its admitted segments. Belongs to one thread.

    `counted_by` names, by output edge, the tensor whose length is the number of
    positions; for `is_fatal` see `LoadedStage`.
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
        # Of this round: what was cancelled and is released, and the time spent on it.
        self._cancelled: dict[SegmentKey, tuple[Completed, float]] = {}

    @property
    def has_segments(self) -> bool:
        """Whether any is admitted. For any thread."""
        return bool(self._admitted)

    @property
    def steppable(self) -> bool:
        """Whether a round without commands would do something."""
        return any(map(self._can_step, self._admitted))

    def run(self, commands: Iterable[EngineCommand]) -> EngineStepped:
        """One round."""
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
        """Carry out a command; a refusal is the segment's failure.

        Raises what leaves the engine's state unknown: a release that fails, a lost device.
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
        """One step, if anything can; and how every touched segment stands after it."""
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
        failed = {event.key for event in events if isinstance(event, Failed)}
        silent = worked_on.difference(event.key for event in events)
        standing = self._standing((touched | worked_on) - failed, silent)
        busy_s = {
            event.key: self._admitted[event.key].busy_s
            for event in events
            if isinstance(event, Completed) and event.key in self._admitted
        }
        busy_s |= {key: spent_s for key, (_, spent_s) in self._cancelled.items()}
        released = tuple(cost for cost, _ in self._cancelled.values())
        return EngineStepped(
            tuple(events), standing, busy_s, step_s, len(ready), worked_on, released
        )

    def _cost(self, key: SegmentKey) -> tuple[Completed, float]:
        """What a segment has cost so far, counts and seconds."""
        running = self._admitted.get(key)
        if running is None or self._counting is None:
            return Completed(key, FinishReason.CANCELLED, 0, 0), running.busy_s if running else 0.0
        return self._counting.so_far(key), running.busy_s

    def _standing(
        self, keys: Iterable[SegmentKey], silent: Collection[SegmentKey]
    ) -> dict[SegmentKey, SegmentStatus]:
        """How these segments stand: those where that has changed since it was told, and those
        that were worked on and made nothing, of which nobody would know otherwise."""
        news = {}
        for key in keys:
            if (running := self._admitted.get(key)) is None:
                continue
            standing = SegmentStatus(self._engine.awaited_edge(key), running.accepted)
            if standing != running.told or key in silent:
                news[key] = running.told = standing
        return news

    def _moved_up(self) -> frozenset[SegmentKey]:
        """Segments that are still being got ready when another of them was: it goes on."""
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
        """Note how many positions were made."""
        for event in events:
            if not isinstance(event, Emitted) or event.prime:
                continue
            if (running := self._admitted.get(event.key)) is not None:
                counted = event.tensors.get(self._counted_by.get(event.edge, ""), ())
                running.made[event.edge] = running.made.get(event.edge, 0) + len(counted)
                if running.limits:
                    running.note_limits()

    def _lost(self, events: list[EngineEvent], error: Exception) -> EngineStepped:
        """The engine raised: release everything, since nobody knows what it left behind."""
        self._failures += 1
        given_up = self._is_fatal(error) or self._failures >= FAILURES_TO_GIVE_UP
        fatal = given_up or not self._released_all()
        self._admitted.clear()
        what = f"{type(error).__name__}: {error}"
        told = engine_at_its_end(what) if fatal else Internal(what)
        return EngineStepped(tuple(events), error=told, fatal=fatal)

    def _released_all(self) -> bool:
        try:
            for key in self._admitted:
                self._engine.release(key)
        except Exception:
            log.exception("the engine cannot release what it had")
            return False
        return True


def engine_at_its_end(what: str) -> Unavailable:
    """The error of every session when the engine cannot go on."""
    return Unavailable(
        f"the engine cannot go on ({what}); the stage ends, try again when it has been restarted",
        retry_after_s=RESTART_S,
    )
