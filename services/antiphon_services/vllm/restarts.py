"""How long to wait before an engine that died is started again."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
FORGIVEN_AFTER_S = 60.0


@dataclass(slots=True)
class Restarts:
    """The pause doubles with each death, and starts over after a life of `forgiven_after_s`."""

    first_pause_s: float = FIRST_PAUSE_S
    longest_pause_s: float = LONGEST_PAUSE_S
    forgiven_after_s: float = FORGIVEN_AFTER_S
    _next_s: float = 0.0

    def pause_s(self, lived_s: float) -> float:
        """The pause after a life of `lived_s`; a start that failed is one of 0."""
        if not self._next_s or lived_s >= self.forgiven_after_s:
            self._next_s = self.first_pause_s
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self.longest_pause_s)
        return pause_s
