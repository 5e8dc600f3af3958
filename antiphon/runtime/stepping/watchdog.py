"""The watchdog of the engine thread.

A `Pulse` records when a thread began its current work. The `Watchdog` checks the pulses on the
event loop, using a single timer that runs only while the engine has work to do. Watching an idle
engine therefore costs nothing, and watching a busy one costs one check per `timeout_s`. When a
pulse is late, the watchdog reports it once. It reports again when no pulse is late any more.

A thread that is ready to run but has no core isn't hung, even though it makes no progress. For this
reason, run-queue delay (`Starvation`) doesn't count, and neither does the time by which the event
loop itself was late. Deadlocks and endless loops don't cause run-queue delay, so they are still
detected.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from antiphon.deadlines.awake_deadline import ON_TIME_S, SLICE_S
from antiphon.deadlines.timer import Timer
from antiphon.errors import AntiphonError, Unavailable
from antiphon.runtime.stepping.starvation import Starvation


class Pulse:
    """Records when a thread began its current work.

    `begin` and `end` must be called on that thread, while the other methods can be called from any
    thread. When late work finally ends, `back` is called on that thread. `starvation` must be
    created on it, too.
    """

    def __init__(
        self,
        back: Callable[[], None] = lambda: None,
        starvation: Callable[[], Starvation] = Starvation,
    ) -> None:
        self._back = back
        self._make_starvation = starvation
        self._starvation: Starvation | None = None
        self._lock = threading.Lock()
        self._began: float | None = None
        self._starved_before_s = 0.0
        self._late = False

    @property
    def late(self) -> bool:
        """Whether the current work has been reported as late."""
        return self._late

    def begin(self) -> None:
        """Record that a piece of work is starting."""
        if self._starvation is None:
            self._starvation = self._make_starvation()
        starved_s = self._starvation.seconds()
        with self._lock:
            self._began, self._starved_before_s = time.monotonic(), starved_s

    def end(self) -> None:
        """Record that a piece of work is complete."""
        with self._lock:
            self._began = None
            was_late, self._late = self._late, False
        if was_late:
            self._back()

    def forget(self) -> None:
        """Clear the record that the work is late, so that `back` isn't called when it ends."""
        with self._lock:
            self._late = False

    def excuse(self, seconds: float) -> None:
        """Exclude `seconds` from the duration of the current work."""
        with self._lock:
            if self._began is not None:
                self._began = min(self._began + seconds, time.monotonic())

    def look(self, timeout_s: float) -> float:
        """Return how many seconds are left for the current work. If the result is 0, the work is
        marked as late.
        """
        with self._lock:
            if self._began is None or self._starvation is None:
                return timeout_s
            starved_s = self._starvation.seconds() - self._starved_before_s
            worked_s = time.monotonic() - self._began - starved_s
            left_s = max(0.0, timeout_s - worked_s)
            self._late = self._late or not left_s
            return left_s


class Watchdog:
    """Checks pulses on the event loop.

    `changed` is called with an error if the engine is late, and with None once it has recovered.
    `has_work` returns whether the engine could start working without a call to `engage`.
    """

    def __init__(
        self,
        timeout_s: float,
        changed: Callable[[AntiphonError | None], None],
        has_work: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._changed = changed
        self._has_work = has_work
        self._pulses: Sequence[Pulse] = ()
        self._timer = Timer(self._look)
        self._closed = False

    def pulse(self) -> Pulse:
        """Create a pulse for a thread and start watching it."""

        def back() -> None:
            self._loop.call_soon_threadsafe(self._back)

        pulse = Pulse(back)
        self._pulses = (*self._pulses, pulse)
        return pulse

    def engage(self) -> None:
        """Start checking, because the engine has received work."""
        if self._timer.due_at is None and not self._closed:
            self._look_after(self._timeout_s)

    def close(self) -> None:
        """Stop checking and detach from all pulses. When a late step finally returns, the event
        loop may no longer exist.
        """
        self._closed = True
        for pulse in self._pulses:
            pulse.forget()
        self._timer.cancel()

    def _look_after(self, delay_s: float) -> None:
        self._timer.set_at(self._loop.time() + delay_s)

    def _look(self, late_s: float) -> None:
        if late_s > ON_TIME_S:
            for pulse in self._pulses:
                pulse.excuse(late_s)
            self._look_after(SLICE_S)
            return
        was_late = any(pulse.late for pulse in self._pulses)
        left_s = min(pulse.look(self._timeout_s) for pulse in self._pulses)
        if not left_s:
            # A late pulse calls `back` by itself when its work ends.
            if not was_late:
                self._changed(self._fault())
        elif self._has_work():
            self._look_after(left_s)

    def _back(self) -> None:
        if self._closed or any(pulse.late for pulse in self._pulses):
            return
        self._changed(None)
        self.engage()

    def _fault(self) -> Unavailable:
        return Unavailable(
            f"the engine has not finished its step within {self._timeout_s:g} s "
            "(watchdog.step_timeout_s); try again, and restart the stage if it doesn't recover",
            retry_after_s=1.0,
        )
