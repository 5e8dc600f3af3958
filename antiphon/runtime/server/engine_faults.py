"""Tracks engine faults. A step can take too long or fail repeatedly, or the engine can give up.

When a step fails, only its own segments fail, because the next step may well succeed. After two
failures in a row, the stage stops accepting sessions for `pause_s` seconds and then tries again.
After the third, `EngineRounds` gives up. An engine whose step is taking too long may still recover,
but if it doesn't do so within another `hung_s` seconds, the stage is considered dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from antiphon.errors import AntiphonError, Unavailable
from antiphon.runtime.session.facts import EngineStepped

FAILURES_TO_PAUSE = 2
PAUSE_S = 5.0
"""The time, in seconds, for which a stage stops accepting sessions after repeated failures."""

Told = Callable[[AntiphonError | None, bool], None]
"""A callback that receives two arguments: the current fault, or None if there is none, and whether
the fault may be temporary.
"""


class EngineFaults:
    """Combines all engine faults into one. Must be used on the event loop."""

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
        """The reason why the stage isn't accepting sessions, or None if it is."""
        return self._ended or self._late or self._failing

    @property
    def passes(self) -> bool:
        """Whether the fault may go away without a restart."""
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
        """Record that an engine step is taking too long. Pass None once the engine has
        recovered.
        """
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._late, self._hung = fault, False
        if fault is not None:
            self._waiting = self._loop.call_later(self._hung_s, self._give_up_waiting)
        self._tell()

    def close(self) -> None:
        """Cancel all timers and stop reporting."""
        for timer in (self._pause, self._waiting):
            if timer is not None:
                timer.cancel()

    def _begin_pause(self, error: AntiphonError) -> None:
        self._failing = Unavailable(
            f"the engine failed in {self._failures} consecutive steps ({error.message}); the "
            f"next attempt is in {self._pause_s:g} s",
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
