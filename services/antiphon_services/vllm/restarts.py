"""The delay before an engine that has died is restarted."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
FORGIVEN_AFTER_S = 60.0


@dataclass(slots=True)
class Restarts:
    """A delay that doubles each time the engine dies. It is reset once the engine has been running
    for `forgiven_after_s` seconds.
    """

    first_pause_s: float = FIRST_PAUSE_S
    longest_pause_s: float = LONGEST_PAUSE_S
    forgiven_after_s: float = FORGIVEN_AFTER_S
    _next_s: float = 0.0

    def pause_s(self, lived_s: float) -> float:
        """Return the delay in seconds. `lived_s` is the time for which the engine was running, or 0
        if it couldn't be started.
        """
        if not self._next_s or lived_s >= self.forgiven_after_s:
            self._next_s = self.first_pause_s
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self.longest_pause_s)
        return pause_s
