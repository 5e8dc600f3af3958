"""Rounds of an engine: carry out commands, then step once. The engine thread's work.

Limits on output are kept here and not on the loop, so that a segment stops exactly
there, however late the loop is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.errors import AntiphonError, Internal
from antiphon.runtime.engine import Emitted, Engine, EngineEvent, Failed
from antiphon.runtime.instructions import Admit, EngineCommand, Feed, Limit, Release
from antiphon.segment import SegmentKey

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """What one round of the engine brought.

    `awaited` has, for every segment that was touched, the edge that it waits for
    or None when it can step, and `accepted` how many chunks the engine has been
    given of it. `error` means that the engine's state is unknown.
    """

    events: Sequence[EngineEvent]
    awaited: Mapping[SegmentKey, str | None] = field(default_factory=dict)
    accepted: Mapping[SegmentKey, int] = field(default_factory=dict)
    busy_s: Mapping[SegmentKey, float] = field(default_factory=dict)
    error: AntiphonError | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.events or self.awaited or self.error)


@dataclass(slots=True)
class _Running:
    """An admitted segment: chunks accepted; positions made and allowed, by output edge."""

    accepted: int = 0
    made: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether an output edge has come to its limit."""
        return any(self.made.get(edge, 0) >= limit for edge, limit in self.limits.items())


class EngineRounds:
    """An engine with its admitted segments. Belongs to one thread.

    `counted_by` names, by output edge, the tensor whose length is the number of
    positions.
    """

    def __init__(self, engine: Engine, counted_by: Mapping[str, str]) -> None:
        self._engine = engine
        self._counted_by = counted_by
        self._admitted: dict[SegmentKey, _Running] = {}

    @property
    def steppable(self) -> bool:
        """Whether a round without commands would do something."""
        return any(self._can_step(key) for key in self._admitted)

    def run(self, commands: Iterable[EngineCommand]) -> EngineBatch:
        """One round."""
        touched: set[SegmentKey] = set()
        events = [event for command in commands for event in self._apply(command, touched)]
        return self._step(events, touched)

    def _apply(self, command: EngineCommand, touched: set[SegmentKey]) -> list[EngineEvent]:
        """Carry out a command; a refusal is the segment's failure."""
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
                    self._admitted[key].limits[edge] = positions
                case Release(key) if key in self._admitted:
                    del self._admitted[key]
                    touched.discard(key)
                    self._engine.release(key)
        except AntiphonError as error:
            return [Failed(command.key, error)]
        except Exception as error:
            log.exception("engine refused %s", type(command).__name__)
            return [Failed(command.key, Internal(f"{type(error).__name__}: {error}"))]
        return []

    def _step(self, events: list[EngineEvent], touched: set[SegmentKey]) -> EngineBatch:
        """One step, if anything can; and what every touched segment waits for after it."""
        ready = [key for key in self._admitted if self._can_step(key)]
        busy_s: dict[SegmentKey, float] = {}
        if ready:
            started = time.perf_counter()
            try:
                made = self._engine.step(self._held())
            except Exception as error:
                log.exception("engine step failed")
                return self._lost(events, Internal(f"{type(error).__name__}: {error}"))
            self._count(made)
            events += made
            share = (time.perf_counter() - started) / len(ready)
            busy_s = dict.fromkeys(ready, share)
        gone = {event.key for event in events if isinstance(event, Failed)}
        touched = (touched | set(ready)) - gone
        here = [key for key in touched if key in self._admitted]
        awaited = {key: self._engine.awaited_edge(key) for key in here}
        accepted = {key: self._admitted[key].accepted for key in here}
        return EngineBatch(tuple(events), awaited, accepted, busy_s)

    def _can_step(self, key: SegmentKey) -> bool:
        return not self._admitted[key].held and self._engine.awaited_edge(key) is None

    def _held(self) -> frozenset[SegmentKey]:
        return frozenset(key for key, running in self._admitted.items() if running.held)

    def _count(self, events: Iterable[EngineEvent]) -> None:
        """Note how many positions were made."""
        for event in events:
            if isinstance(event, Emitted) and (running := self._admitted.get(event.key)):
                counted = event.tensors.get(self._counted_by.get(event.edge, ""), ())
                running.made[event.edge] = running.made.get(event.edge, 0) + len(counted)

    def _lost(self, events: list[EngineEvent], error: AntiphonError) -> EngineBatch:
        """A step raised: release everything, since nobody knows what it left behind."""
        for key in self._admitted:
            self._engine.release(key)
        self._admitted.clear()
        return EngineBatch(tuple(events), error=error)
