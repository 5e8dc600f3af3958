"""The measurements of a single request.

Times are measured from the moment at which the request was due rather than the moment at which the
driver sent it. Otherwise, a service that slows down the driver would appear to be faster.
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
"""The error of a request that was not sent because too many other requests were open."""

UNFINISHED = "unfinished"
"""The error of a request that was still open when the run stopped waiting."""

_ROUNDING_S = 1e-6

METRICS: dict[str, str] = {
    "ttft": "scheduled time to first text",
    "ttfa": "scheduled time to first audio",
    "ttfi": "scheduled time to first image",
    "rtf": "time until the last audio ÷ duration of the audio",
    "underrun": (
        "longest audio gap of a player that starts at the first audio; for a stage with "
        "real-time input, in addition to the gap of its input"
    ),
    "gap": "longest gap between two pieces",
    "duration": "scheduled time to end",
}
"""The metrics of a request. Lower values are better. They are in seconds, except for the ratio
rtf.
"""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A stage's report on a segment. Times are in seconds since the stage opened the segment."""

    first_input_s: float
    first_output_s: float
    last_output_s: float
    busy_s: float
    input_positions: int
    output_positions: int

    @classmethod
    def of(cls, report: StageReport | session_pb2.SegmentReport) -> StageTimes:
        """Convert a report."""
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
    """The messages that were sent over an edge."""

    messages: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int, messages: int = 1) -> None:
        """Count messages with the given total size."""
        self.messages += messages
        self.size_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class FedAmounts:
    """The input that a stage has received in real time.

    `audio_s` is the duration of audio up to and including this input, `due_at` is the time at which
    the input was due, and `late_s` is the part of its delay that the driver itself caused.
    """

    audio_s: float
    due_at: float
    late_s: float


class OwnDelay:
    """Determines how much of a chunk's delay is caused by the driver.

    If the driver wakes up too late, it causes a delay until it has caught up. Any additional delay
    is caused by the stage, because it didn't read its input.
    """

    def __init__(self) -> None:
        self._late_s = 0.0

    def woke(self, late_s: float) -> None:
        """Record how late the driver woke up after waiting for a chunk's due time."""
        self._late_s = late_s

    def of_send(self, late_s: float) -> float:
        """Return the part of a chunk's delay that is caused by the driver."""
        self._late_s = max(0.0, min(self._late_s, late_s))
        return self._late_s


@dataclass(slots=True)
class Trace:
    """A request as observed by the driver. All times are in seconds on the driver's clock."""

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
        """Count one message of this size on an edge."""
        self.edges.setdefault(edge, Traffic()).add(size_bytes)

    def end(self, at: float, error: str = "") -> Measured:
        """Return the measurements of the request, which ended at the given time."""
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
        """Yield each piece of audio together with its input.

        Each item contains the piece's arrival time, its duration in seconds, the due time of its
        last input, and the delay of that input. If the stage is not paced, all input is due at the
        start.
        """
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
        """Return the underrun of an ideal stage that doesn't take any time.

        It is greater than 0 because a stage's first frame is shorter than the others, and a feed of
        one frame per frame duration never makes up for this.
        """
        return underrun((due_at, seconds) for _, seconds, due_at, _ in self._with_feed())


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a completed request. `error` is empty if the request was successful.

    `due_at` is a time on the driver's clock, and all other times are in seconds relative to it. A
    metric is None if its event didn't occur. `gaps` contains the intervals between pieces of audio,
    or between pieces of text if there is no audio.
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
        """Return the value of one of the `METRICS`."""
        value: float | None = getattr(self, name)
        return value
