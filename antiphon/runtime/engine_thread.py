"""The engine's own thread, and the mailbox between it and the I/O loop.

Both directions carry immutable batches and are bounded: commands by the mailbox's
size (a full mailbox refuses the command, and the session fails), results by a
number of permits (an engine that is ahead of the loop waits). So the two domains
can move to separate processes without a change of what they say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.errors import AntiphonError, Internal, ResourceExhausted
from antiphon.runtime.engine import Engine, EngineEvent, Failed
from antiphon.runtime.instructions import Admit, EngineCommand, Feed, Release
from antiphon.segment import SegmentKey

MAILBOX_COMMANDS = 65536
RESULT_PERMITS = 256

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """What one round of the engine brought.

    `awaited` has, for every segment that was touched, the edge that it waits for
    or None when it can step. `error` means that the engine's state is unknown.
    """

    events: Sequence[EngineEvent]
    awaited: Mapping[SegmentKey, str | None] = field(default_factory=dict)
    busy_s: Mapping[SegmentKey, float] = field(default_factory=dict)
    error: AntiphonError | None = None


class EngineThread:
    """Runs an engine. `post` is called on the engine's thread with every batch.

    The receiver of a batch calls `batch_taken` once it is done with it.
    """

    def __init__(self, engine: Engine, post: Callable[[EngineBatch], None]) -> None:
        self._engine = engine
        self._post = post
        self._commands: deque[EngineCommand] = deque()
        self._wake = threading.Condition()
        self._permits = threading.Semaphore(RESULT_PERMITS)
        self._stopping = False
        self._admitted: set[SegmentKey] = set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, command: EngineCommand) -> None:
        """Hand over a command. Raises `ResourceExhausted` when the mailbox is full.

        A `Release` always goes in: it only makes room.
        """
        with self._wake:
            full = len(self._commands) >= MAILBOX_COMMANDS
            if full and not isinstance(command, Release):
                raise ResourceExhausted(f"{MAILBOX_COMMANDS} commands wait for the engine")
            self._commands.append(command)
            self._wake.notify()

    def batch_taken(self) -> None:
        """The receiver is done with a batch; the engine may run that much further ahead."""
        self._permits.release()

    def stop(self) -> None:
        """Ask the thread to end after its current step."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._permits.release()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False when it is still in a step."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (commands := self._take_commands()) is not None:
            touched: set[SegmentKey] = set()
            events = [event for command in commands for event in self._apply(command, touched)]
            batch = self._step(events, touched)
            if not (batch.events or batch.awaited or batch.error):
                continue
            self._permits.acquire()
            if self._stopping:
                return
            self._post(batch)

    def _take_commands(self) -> list[EngineCommand] | None:
        """All waiting commands; blocks while there are none and nothing can step."""
        steppable = any(self._engine.awaited_edge(key) is None for key in self._admitted)
        with self._wake:
            while not (self._commands or self._stopping or steppable):
                self._wake.wait()
            if self._stopping:
                return None
            commands = list(self._commands)
            self._commands.clear()
            return commands

    def _apply(self, command: EngineCommand, touched: set[SegmentKey]) -> list[EngineEvent]:
        """Carry out a command; a refusal is the segment's failure."""
        try:
            match command:
                case Admit(key, settings):
                    self._engine.admit(key, settings)
                    self._admitted.add(key)
                    touched.add(key)
                case Feed(key, chunk) if key in self._admitted:
                    self._engine.accept(key, chunk)
                    touched.add(key)
                case Release(key) if key in self._admitted:
                    self._admitted.discard(key)
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
        ready = [key for key in self._admitted if self._engine.awaited_edge(key) is None]
        busy_s: dict[SegmentKey, float] = {}
        if ready:
            started = time.perf_counter()
            try:
                events += self._engine.step()
            except Exception as error:
                log.exception("engine step failed")
                return self._lost(events, Internal(f"{type(error).__name__}: {error}"))
            share = (time.perf_counter() - started) / len(ready)
            busy_s = dict.fromkeys(ready, share)
        gone = {event.key for event in events if isinstance(event, Failed)}
        touched = (touched | set(ready)) - gone
        awaited = {key: self._engine.awaited_edge(key) for key in touched if key in self._admitted}
        return EngineBatch(tuple(events), awaited, busy_s)

    def _lost(self, events: list[EngineEvent], error: AntiphonError) -> EngineBatch:
        """A step raised: release everything, since nobody knows what it left behind."""
        for key in self._admitted:
            self._engine.release(key)
        self._admitted.clear()
        return EngineBatch(tuple(events), error=error)
