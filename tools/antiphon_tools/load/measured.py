"""What is seen of one request while it runs, and what it comes to. Pure.

Times count from the moment at which the request was due, not from the one at which the
driver got round to it: a service that holds the driver up does not look better for it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from antiphon.client.events import StageReport
from antiphon.v1 import session_pb2
from antiphon_tools.load.player import Piece, underrun

NOT_SENT = "not sent"
"""The error of a request that was due while too many others were open."""

UNFINISHED = "unfinished"
"""The error of a request that was still open when the run's patience ended."""

_ROUNDING_S = 1e-6

METRICS: dict[str, str] = {
    "ttft": "due to first text",
    "ttfa": "due to first audio",
    "ttfi": "due to first image",
    "rtf": "time until the last audio ÷ length of the audio",
    "underrun": "worst shortage of a player that starts at the first audio; of a stage fed at real "
    "time, what it adds to that of its feed",
    "gap": "longest wait between two pieces",
    "duration": "due to end",
}
"""What a request is judged by, smaller being better. Seconds, but for rtf, a ratio."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A stage's account: seconds since the stage opened the segment, and positions."""

    first_input_s: float
    first_output_s: float
    last_output_s: float
    busy_s: float
    input_positions: int
    output_positions: int

    @classmethod
    def of(cls, report: StageReport | session_pb2.SegmentReport) -> StageTimes:
        """The value of a report."""
        return cls(
            first_input_s=report.first_input_s,
            first_output_s=report.first_output_s,
            last_output_s=report.last_output_s,
            busy_s=report.busy_s,
            input_positions=report.input_positions,
            output_positions=report.output_positions,
        )


@dataclass(slots=True)
class Traffic:
    """What went over an edge."""

    messages: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int, messages: int = 1) -> None:
        """Count messages of this many bytes in total."""
        self.messages += messages
        self.size_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class FedAmounts:
    """What a stage was fed at real time: seconds of audio with what came before it, when it was
    due, and by how much the driver, busy with other things, was late."""

    audio_s: float
    due_at: float
    late_s: float


class OwnDelay:
    """Which part of a chunk's delay is the driver's own.

    It is the driver's when it wakes too late, and until it has caught up. A chunk that is
    later than that was kept waiting by the stage, which did not read.
    """

    def __init__(self) -> None:
        self._late_s = 0.0

    def woke(self, late_s: float) -> None:
        """The driver had waited for a chunk's time and woke so much later."""
        self._late_s = late_s

    def of_send(self, late_s: float) -> float:
        """The driver's part of what a chunk is late by when it is sent."""
        self._late_s = max(0.0, min(self._late_s, late_s))
        return self._late_s


@dataclass(slots=True)
class Trace:
    """A request as a driver sees it. All times are the driver's clock, seconds."""

    number: int
    due_at: float
    sent_at: float | None = None
    texts: list[float] = field(default_factory=list)
    audio: list[Piece] = field(default_factory=list)
    images: list[float] = field(default_factory=list)
    fed: list[FedAmounts] = field(default_factory=list)
    edges: dict[str, Traffic] = field(default_factory=dict)
    stages: dict[str, StageTimes] = field(default_factory=dict)

    def moved(self, edge: str, size_bytes: int) -> None:
        """One message of this size went over an edge."""
        self.edges.setdefault(edge, Traffic()).add(size_bytes)

    def end(self, at: float, error: str = "") -> Measured:
        """What the request comes to, ended at this time."""
        first_at = self.audio[0][0] if self.audio else None
        audio_s = sum(seconds for _, seconds in self.audio)
        in_time = [(at - late_s, seconds) for at, seconds, _, late_s in self._with_feed()]
        pieces = [at for at, _ in in_time] or self.texts
        return Measured(
            number=self.number,
            due_at=self.due_at,
            late_s=None if self.sent_at is None else self.sent_at - self.due_at,
            duration=at - self.due_at,
            ttft=self.texts[0] - self.due_at if self.texts else None,
            ttfa=None if first_at is None else first_at - self.due_at,
            ttfi=self.images[0] - self.due_at if self.images else None,
            images=len(self.images),
            audio_s=audio_s,
            rtf=(self.audio[-1][0] - self.due_at) / audio_s if audio_s else None,
            fed_late_s=max((each.late_s for each in self.fed), default=None),
            underrun=max(0.0, underrun(in_time) - self._underrun_of_feed()) if in_time else None,
            gaps=array("d", (max(0.0, later - at) for at, later in pairwise(pieces))),
            edges=self.edges,
            stages=self.stages,
            error=error,
        )

    def _with_feed(self) -> Iterator[tuple[float, float, float, float]]:
        """Each piece of audio: when it came, its seconds, when the last that it is made of was
        due to the stage, and how late that was. A stage that is not paced has all at once."""
        ends = [each.audio_s for each in self.fed]
        until_s = 0.0
        for at, seconds in self.audio:
            until_s += seconds
            if not self.fed:
                yield at, seconds, self.due_at, 0.0
                continue
            source = self.fed[min(bisect_left(ends, until_s - _ROUNDING_S), len(ends) - 1)]
            yield at, seconds, source.due_at, source.late_s

    def _underrun_of_feed(self) -> float:
        """The shortage of a stage that takes no time at all: its first frame is shorter than the
        others, and a feed of one frame a frame's time never makes up for that."""
        return underrun((due_at, seconds) for _, seconds, due_at, _ in self._with_feed())


@dataclass(frozen=True, slots=True)
class Measured:
    """A request that is over. `error` is empty when it succeeded.

    `due_at` is the driver's clock, the other times are seconds since then. A metric is
    None when the thing did not happen. `gaps` are between pieces of audio, or of text
    where there is no audio.
    """

    number: int
    due_at: float
    late_s: float | None
    fed_late_s: float | None
    duration: float
    ttft: float | None
    ttfa: float | None
    ttfi: float | None
    images: int
    audio_s: float
    rtf: float | None
    underrun: float | None
    gaps: array[float]
    edges: Mapping[str, Traffic]
    stages: Mapping[str, StageTimes]
    error: str

    @property
    def gap(self) -> float | None:
        """The longest gap."""
        return max(self.gaps, default=None)

    def metric(self, name: str) -> float | None:
        """One of `METRICS`."""
        value: float | None = getattr(self, name)
        return value
