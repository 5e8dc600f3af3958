"""The engine thread and its communication with the event loop.

Immutable batches are passed in both directions, and both directions are limited. The mailbox limits
the number and total size of commands. If it is full, the command is rejected and its session fails.
Results are limited by permits, so an engine that gets too far ahead of the event loop has to wait.
The two sides share nothing else, so they could also run in separate processes and exchange the same
messages.

If the thread ends because of an exception, it posts the exception in a final batch, which is
`fatal`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import SimpleQueue

from antiphon.errors import ResourceExhausted
from antiphon.runtime.engine import (
    DetachedEngine,
    Engine,
    PendingCopies,
    PreparingEngine,
    never_fatal,
)
from antiphon.runtime.process import stand_back
from antiphon.runtime.session.facts import EngineStepped
from antiphon.runtime.session.instructions import EngineCommand
from antiphon.runtime.stepping.handover import Handover
from antiphon.runtime.stepping.mailbox import EngineMailbox
from antiphon.runtime.stepping.rounds import EngineRounds, engine_at_its_end
from antiphon.runtime.stepping.watchdog import Pulse

MAILBOX_BYTES = 256 << 20
RESULT_PERMITS = 256

log = logging.getLogger(__name__)


class EngineThread:
    """Runs an engine on its own thread.

    `post` is called with every batch. It is called on the engine thread, or on the thread of the
    `Handover` if the batch has to wait for `copies`. The receiver must call `batch_taken` after
    processing a batch. `pulse` provides the heartbeats for the watchdog. `nice` is the niceness of
    the thread (Linux only). `counted_by` is described in `EngineRounds`, and `is_fatal` is
    described in `LoadedStage`.
    """

    def __init__(
        self,
        engine: Engine,
        post: Callable[[EngineStepped], None],
        counted_by: Mapping[str, str],
        copies: PendingCopies | None = None,
        nice: int = 0,
        mailbox_bytes: int = MAILBOX_BYTES,
        pulse: Callable[[], Pulse] = Pulse,
        is_fatal: Callable[[Exception], bool] = never_fatal,
    ) -> None:
        self._nice = nice
        self._post = post
        self._rounds = EngineRounds(engine, counted_by, is_fatal)
        self._detached = engine if isinstance(engine, DetachedEngine) else None
        self._copies = copies
        self._pulse = pulse()
        self._handover = Handover(post, pulse(), is_fatal)
        self._mailbox = EngineMailbox(mailbox_bytes)
        self._wake = threading.Condition()
        # Permits are implemented as a queue rather than a semaphore, because queues are implemented
        # in C.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(RESULT_PERMITS):
            self._permits.put(None)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._preparing = engine if isinstance(engine, PreparingEngine) else None
        if self._preparing is not None:
            self._preparing.wake_with(self._look_again)

    @property
    def has_work(self) -> bool:
        """Whether the thread could do some work without another command. This can be called from
        any thread.
        """
        return self._rounds.has_segments or len(self._mailbox) > 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(
        self, commands: Iterable[EngineCommand]
    ) -> list[tuple[EngineCommand, ResourceExhausted]]:
        """Enqueue commands. Returns the commands that were rejected, together with the errors
        raised by `EngineMailbox.put`.
        """
        refused = []
        with self._wake:
            for command in commands:
                try:
                    self._mailbox.put(command)
                except ResourceExhausted as error:
                    refused.append((command, error))
            self._wake.notify()
        self._interrupt()
        return refused

    def batch_taken(self) -> None:
        """Return a batch's permit, which allows the engine to run ahead by one more batch."""
        self._permits.put(None)

    def stop(self) -> None:
        """Ask the thread to finish its current step, close the engine and stop."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._interrupt()
        self._permits.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end. Returns False if it is still executing a step after
        `timeout_s` seconds.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _interrupt(self) -> None:
        """Interrupt the step of a detached engine, so that the thread handles the waiting
        commands.
        """
        if self._detached is not None:
            self._detached.interrupt()

    def _look_again(self) -> None:
        """Wake the thread because a segment is ready to step. This can be called from any
        thread.
        """
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        stand_back(self._nice)
        try:
            self._run_rounds()
        except Exception as error:
            log.exception("the engine thread failed")
            what = f"{type(error).__name__}: {error}"
            self._post(EngineStepped(error=engine_at_its_end(what), fatal=True))
        finally:
            self._handover.close()
            if self._detached is not None:
                self._detached.close()
            if self._preparing is not None:
                self._preparing.close()

    def _run_rounds(self) -> None:
        while (commands := self._take_commands()) is not None:
            batch = self._run_round(commands)
            if batch.fatal:
                self._post(batch)
                return
            if batch.is_empty:
                continue
            self._permits.get()
            if self._stopping:
                return
            self._handover.put(batch, None if self._copies is None else self._copies.seal())

    def _run_round(self, commands: Iterator[EngineCommand]) -> EngineStepped:
        """Run one round under the watchdog. The step of a detached engine is exempt, because it
        blocks by design.
        """
        if self._detached is not None:
            return self._rounds.run(commands)
        self._pulse.begin()
        try:
            return self._rounds.run(commands)
        finally:
            self._pulse.end()

    def _take_commands(self) -> Iterator[EngineCommand] | None:
        """Return all waiting commands, or None if the thread has to stop.

        This blocks while there are no commands and no segment can step.
        """
        with self._wake:
            while not (len(self._mailbox) or self._stopping or self._rounds.steppable):
                self._wake.wait()
            if self._stopping:
                return None
            return self._mailbox.take()
