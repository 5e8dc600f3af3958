"""Determines what happens to a deployment when one of its services ends unexpectedly. The functions
in this module have no side effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OnExit = Literal["restart", "stop", "leave"]
"""`restart` starts the service again, `stop` ends the deployment, and `leave` only reports the
event.

With `leave`, the deployment ends when its gateway does.
"""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0


@dataclass(slots=True)
class Backoff:
    """The delay before a service is restarted. It increases each time, until the service has run
    steadily.

    After a service has been ready for `steady_s` seconds, the delay is reset to its minimum.
    """

    first_s: float = FIRST_PAUSE_S
    longest_s: float = LONGEST_PAUSE_S
    steady_s: float = STEADY_S
    _next_s: float = 0.0

    def pause_s(self, ready_for_s: float) -> float:
        """Return the delay in seconds. `ready_for_s` is how long the service was ready, or 0 if it
        never was.
        """
        if not self._next_s or ready_for_s >= self.steady_s:
            self._next_s = self.first_s
        pause_s = min(self._next_s, self.longest_s)
        self._next_s = 2 * pause_s
        return pause_s
