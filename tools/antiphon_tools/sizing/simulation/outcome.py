"""The results of simulated calls and the utilization of the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon_tools.load.statistics import percentile
from antiphon_tools.sizing.offered import OfferedCall

ANSWERED = "answered"


@dataclass(slots=True)
class SimulatedCall:
    """A simulated call. Times are in simulated seconds. `outcome` is empty until the call ends."""

    offered: OfferedCall
    granted_at: float | None = None
    first_text_at: float | None = None
    first_audio_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""

    @property
    def first_audio_s(self) -> float | None:
        """The time from the arrival of the call to its first audio."""
        return None if self.first_audio_at is None else self.first_audio_at - self.offered.at_s

    @property
    def waited_s(self) -> float | None:
        """The time from the arrival of the call to its admission."""
        return None if self.granted_at is None else self.granted_at - self.offered.at_s

    def end(self, now: float, outcome: str) -> None:
        """Mark the call as completed. This can only be called once."""
        if self.outcome:
            raise AssertionError(f"call {self.offered.number} ends as {outcome} after its end")
        self.outcome, self.ended_at = outcome, now


@dataclass(frozen=True, slots=True)
class RoleUse:
    """The utilization of a role's replicas.

    `busy` is the fraction of time during which engines were busy, and `slots` is the average
    fraction of slots in use. Both are measured from the end of the warm-up to the end of the load.
    `most_slots` is the maximum fraction of slots in use at any time.
    """

    replicas: int
    busy: float
    slots: float
    most_slots: float


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The result of a simulated run. Figures only include the calls that arrived after the warm-up.

    `gateway_busy` is the utilization of the busiest gateway's event loop.
    """

    calls: Sequence[SimulatedCall]
    warm_up_s: float
    ended_at: float
    roles: Mapping[str, RoleUse]
    gateway_busy: float
    most_in_flight: int
    picks_refused: int
    events: int

    @property
    def counted(self) -> list[SimulatedCall]:
        """The calls that arrived after the warm-up."""
        return [call for call in self.calls if call.offered.at_s >= self.warm_up_s]

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of calls by outcome."""
        return dict(Counter(call.outcome for call in self.counted).most_common())

    @property
    def answered(self) -> float:
        """The fraction of calls that were answered, or 1 if there are no calls."""
        calls = self.counted
        return sum(call.outcome == ANSWERED for call in calls) / len(calls) if calls else 1.0

    def first_audio(self, percent: float) -> float | None:
        """Return a percentile of the time to first audio, or None if there are no answers."""
        return _percentile([call.first_audio_s for call in self.counted], percent)

    def waited(self, percent: float) -> float | None:
        """Return a percentile of the time until admission."""
        return _percentile([call.waited_s for call in self.counted], percent)

    def keeps(self, percent: float, first_audio_s: float, answered: float) -> bool:
        """Return whether the run meets a goal."""
        value = self.first_audio(percent)
        return self.answered >= answered and value is not None and value <= first_audio_s


def _percentile(values: Sequence[float | None], percent: float) -> float | None:
    known = sorted(value for value in values if value is not None)
    return percentile(known, percent) if known else None
