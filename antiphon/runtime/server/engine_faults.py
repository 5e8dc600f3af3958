"""Tracks the faults of a stage's engine. A step may take too long or fail repeatedly, or the engine
may give up.

A failed step only fails its own segments, because the next step may succeed. After two consecutive
failures, the stage accepts no sessions for `pause_s` seconds, and then tries again. After the
third, `EngineRounds` gives up. An engine that is late may recover. If it has not done so after
another `hung_s` seconds, the stage counts as dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.errors import AntiphonError, Unavailable
from antiphon.runtime.session.facts import EngineStepped

FAILURES_TO_PAUSE = 2
PAUSE_S = 5.0
"""The time in seconds for which a stage accepts no sessions after consecutive failures."""

Told = Callable[[AntiphonError | None, bool], None]
"""A function that is called with the current fault, or None, and with whether the fault may be
temporary.
"""


class EngineFaults:
    """Combines all faults of the engine. Use it on the event loop."""

    def __init__(self, told: Told, *, pause_s: float, hung_s: float) -> None:
        self._told = told
        self._pause_s = pause_s
        self._hung_s = hung_s
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._pause: asyncio.TimerHandle | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._ended: AntiphonError | None = None
        self._late: AntiphonError | None = None
        self._failing: AntiphonError | None = None
        self._hung = False

    @property
    def fault(self) -> AntiphonError | None:
        """The reason why the stage accepts no sessions, or None."""
        return self._ended or self._late or self._failing

    @property
    def passes(self) -> bool:
        """Whether the fault may be temporary."""
        return self._ended is None and not self._hung

    def stepped(self, stepped: EngineStepped) -> None:
        """Record the result of an engine round."""
        if stepped.error is None:
            if stepped.step_segments and self._failures:
                self._failures = 0
                self._recover()
        elif stepped.fatal:
            self._ended = stepped.error
            self._tell()
        else:
            self._failures += 1
            if self._failures >= FAILURES_TO_PAUSE:
                self._begin_pause(stepped.error)

    def late(self, fault: AntiphonError | None) -> None:
        """Record that a step of the engine is late. Pass None once the engine has recovered."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._late, self._hung = fault, False
        if fault is not None:
            self._waiting = self._loop.call_later(self._hung_s, self._give_up_waiting)
        self._tell()

    def close(self) -> None:
        """Cancel all timers and reports."""
        for timer in (self._pause, self._waiting):
            if timer is not None:
                timer.cancel()

    def _begin_pause(self, error: AntiphonError) -> None:
        self._failing = Unavailable(
            f"the engine has failed in {self._failures} steps in a row ({error.message}); it is "
            f"tried again in {self._pause_s:g} s",
            retry_after_s=self._pause_s,
        )
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self._loop.call_later(self._pause_s, self._recover)
        self._tell()

    def _recover(self) -> None:
        if self._failing is not None:
            self._failing = None
            self._tell()
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _give_up_waiting(self) -> None:
        self._hung = True
        self._tell()

    def _tell(self) -> None:
        self._told(self.fault, self.passes)
