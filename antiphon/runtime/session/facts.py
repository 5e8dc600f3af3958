"""What can happen to a stage, as values: everything that the session table decides from.

A stage's whole behaviour is a function of these and of the times at which they came: the same
list, handed to a new table, gives the same instructions (see `antiphon_testkit.recording`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import Completed, EngineEvent
from antiphon.runtime.session.instructions import Destination, Refuse
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest
from antiphon.values.chunk import Chunk
from antiphon.values.segment import SegmentKey

# -- from a session's stream -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionRequested:
    """A client opens a session."""

    request: SessionRequest


@dataclass(frozen=True, slots=True)
class SegmentRequested:
    """A client opens a segment."""

    session_id: str
    request: SegmentRequest


@dataclass(frozen=True, slots=True)
class InputFinished:
    """The client sends no more input for a segment."""

    session_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class SegmentCancelled:
    """The client ends a segment at once; the session stays and may open another."""

    session_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class ClientDone:
    """The client has closed its side: the session ends after its open segment."""

    session_id: str


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The session's stream is gone: the client cancelled, or died."""

    session_id: str


@dataclass(frozen=True, slots=True)
class SessionFaulted:
    """An error that ends a session was found outside the table."""

    session_id: str
    error: AntiphonError


# -- from a stream or a link -------------------------------------------------------------


class ChunkArrived(Struct, frozen=True):
    """A chunk, and the link that it came on; "" is the session's own stream."""

    chunk: Chunk
    link_id: str

    def refusal(self, error: AntiphonError) -> Refuse:
        """Tells the chunk's producer that its session is not wanted."""
        chunk = self.chunk
        return Refuse(self.link_id, chunk.session_id, chunk.edge, error)


@dataclass(frozen=True, slots=True)
class ChunkMalformed:
    """A chunk of this session came on a link and cannot be read."""

    session_id: str
    error: AntiphonError


class Credited(Struct, frozen=True):
    """A destination takes up to `positions` of a segment's output in all."""

    key: SegmentKey
    edge: str
    destination: Destination
    positions: int


@dataclass(frozen=True, slots=True)
class UpstreamProgressed:
    """A stage before this one works on the segment; nothing has come of it yet."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class ProducerGone:
    """A stage before this one is lost, which had done its part of the segment."""

    key: SegmentKey
    producer: str


# -- from links --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkSuspended:
    """The link from an upstream process broke and may heal."""

    link_id: str
    address: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """An upstream process is gone."""

    link_id: str


@dataclass(frozen=True, slots=True)
class ChunksRefused:
    """A downstream stage takes no more chunks of a session: `Cancelled` when it has ended there."""

    session_id: str
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class DestinationSuspended:
    """The link to a downstream process broke and may heal."""

    address: str
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class DestinationLost:
    """A downstream process cannot be reached; sessions whose chunks it has not acknowledged."""

    address: str
    error: AntiphonError
    unacknowledged: frozenset[str] = frozenset()
    boot_id: str = ""


# -- from the engine and the clock -------------------------------------------------------


class SegmentStatus(Struct, frozen=True):
    """Where the engine stands with a segment: the edge that it waits for, None when it can
    step, and how many chunks it had been given of it."""

    awaited: str | None
    accepted: int


class EngineStepped(Struct, frozen=True):
    """What one round of the engine brought.

    A round without a step has `step_segments` 0. `worked_on` are the segments that took part in
    the step, or that wait to be got ready and have moved up. `standing` is of those where it has
    changed, and of those worked on without output; `busy_s` the engine's time on those that have
    completed or are `released`: they were cancelled and hold nothing any more. `error` means that
    the engine's state is unknown, and `fatal` that no round follows: it cannot go on.
    """

    events: Sequence[EngineEvent] = ()
    standing: Mapping[SegmentKey, SegmentStatus] = {}
    busy_s: Mapping[SegmentKey, float] = {}
    step_s: float = 0.0
    step_segments: int = 0
    worked_on: frozenset[SegmentKey] = frozenset()
    released: Sequence[Completed] = ()
    error: AntiphonError | None = None
    fatal: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        told = self.events or self.standing or self.released
        return not (told or self.step_segments or self.error)


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine is gone, or its state is unknown: every session fails."""

    error: AntiphonError


@dataclass(frozen=True, slots=True)
class DrainBegun:
    """The stage stops: what runs is finished, and no segment after a session's first begins."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A deadline that the table named has come."""


Fact = (
    SessionRequested
    | SegmentRequested
    | InputFinished
    | SegmentCancelled
    | ClientDone
    | StreamLost
    | SessionFaulted
    | ChunkArrived
    | ChunkMalformed
    | Credited
    | UpstreamProgressed
    | ProducerGone
    | LinkSuspended
    | LinkLost
    | ChunksRefused
    | DestinationSuspended
    | DestinationLost
    | EngineStepped
    | EngineLost
    | DrainBegun
    | TimePassed
)
