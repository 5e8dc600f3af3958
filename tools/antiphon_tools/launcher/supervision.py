"""What becomes of a deployment when one of its services ends by itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OnExit = Literal["restart", "stop", "leave"]
"""`restart` starts the service again, `stop` ends the deployment, `leave` only tells it.

With `leave` the deployment ends with its gateway.
"""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0


@dataclass(slots=True)
class Backoff:
    """How long a service that ended stays down: longer each time, until it was steady.

    A service that had been ready for `steady_s` has the shortest pause again.
    """

    first_s: float = FIRST_PAUSE_S
    longest_s: float = LONGEST_PAUSE_S
    steady_s: float = STEADY_S
    _next_s: float = 0.0

    def pause_s(self, ready_for_s: float) -> float:
        """The pause after an end that came this long after it was ready; 0: it never was."""
        if not self._next_s or ready_for_s >= self.steady_s:
            self._next_s = self.first_s
        pause_s = min(self._next_s, self.longest_s)
        self._next_s = 2 * pause_s
        return pause_s
