"""What is wrong with a stage's engine: late in a step, failing again and again, at its end.

A step that raises loses its segments and says nothing about the next one. A second one in a row,
without a good one between, is a sign: the stage takes no sessions for `pause_s`, and then
tries again. Whoever gives the engine up is `EngineRounds`, at the third. An engine that is late
may come back; after another `hung_s` nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.errors import AntiphonError, Unavailable
from antiphon.runtime.session.facts import EngineStepped

FAILURES_TO_PAUSE = 2

Told = Callable[[AntiphonError | None, bool], None]
"""Gets the fault that there is now, or None, and whether it may pass."""


class EngineFaults:
    """Belongs to the event loop."""

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
        """What keeps the stage from taking sessions."""
        return self._ended or self._late or self._failing

    @property
    def passes(self) -> bool:
        """Whether waiting may help."""
        return self._ended is None and not self._hung

    def stepped(self, stepped: EngineStepped) -> None:
        """A round is over."""
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
        """The engine is late in a step, or (None) back."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._late, self._hung = fault, False
        if fault is not None:
            self._waiting = self._loop.call_later(self._hung_s, self._give_up_waiting)
        self._tell()

    def close(self) -> None:
        """Tell nothing any more."""
        for timer in (self._pause, self._waiting):
            if timer is not None:
                timer.cancel()

    def _begin_pause(self, error: AntiphonError) -> None:
        self._failing = Unavailable(
            f"the engine has failed in {self._failures} steps in a row ({error.message}); it is "
            f"tried again in {self._pause_s:g} s (failing_pause_s)",
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
