"""The results of simulated calls, and the state of the fleet during them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon_tools.load.statistics import percentile
from antiphon_tools.sizing.offered import OfferedCall

ANSWERED = "answered"


@dataclass(slots=True)
class SimulatedCall:
    """A call that is simulated. Moments are simulated seconds; `outcome` is empty until its end."""

    offered: OfferedCall
    granted_at: float | None = None
    first_text_at: float | None = None
    first_audio_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""

    @property
    def first_audio_s(self) -> float | None:
        """From when it came to its first audio."""
        return None if self.first_audio_at is None else self.first_audio_at - self.offered.at_s

    @property
    def waited_s(self) -> float | None:
        """From when it came to when it was admitted."""
        return None if self.granted_at is None else self.granted_at - self.offered.at_s

    def end(self, now: float, outcome: str) -> None:
        """It is over, once."""
        if self.outcome:
            raise AssertionError(f"call {self.offered.number} ends as {outcome} after its end")
        self.outcome, self.ended_at = outcome, now


@dataclass(frozen=True, slots=True)
class RoleUse:
    """Of a role's replicas: for which part of the time from the warm-up's end to the load's end
    engines were busy and slots held; `most_slots` are the most held at any moment of the run."""

    replicas: int
    busy: float
    slots: float
    most_slots: float


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """A simulated run. Figures are of the calls that came after the warm-up.

    `gateway_busy` is the busiest gateway's event loop, a part of the time as in `RoleUse`.
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
        """Calls that came after the warm-up."""
        return [call for call in self.calls if call.offered.at_s >= self.warm_up_s]

    @property
    def outcomes(self) -> dict[str, int]:
        """How many ended how."""
        return dict(Counter(call.outcome for call in self.counted).most_common())

    @property
    def answered(self) -> float:
        """The part that was answered; 1 without any calls."""
        calls = self.counted
        return sum(call.outcome == ANSWERED for call in calls) / len(calls) if calls else 1.0

    def first_audio(self, percent: float) -> float | None:
        """A percentile of the first audio, of what was answered; None without any."""
        return _percentile([call.first_audio_s for call in self.counted], percent)

    def waited(self, percent: float) -> float | None:
        """A percentile of the wait for admission."""
        return _percentile([call.waited_s for call in self.counted], percent)

    def keeps(self, percent: float, first_audio_s: float, answered: float) -> bool:
        """Whether so much is answered, and so many percent of that begin so soon."""
        value = self.first_audio(percent)
        return self.answered >= answered and value is not None and value <= first_audio_s


def _percentile(values: Sequence[float | None], percent: float) -> float | None:
    known = sorted(value for value in values if value is not None)
    return percentile(known, percent) if known else None
