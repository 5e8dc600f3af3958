"""The events that a session table handles, as plain values.

A stage's behavior is a pure function of these facts and the times at which they occur. Passing the
same facts to a new table always produces the same instructions (see `antiphon_testkit.recording`).
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
    """A client wants to open a session."""

    request: SessionRequest


@dataclass(frozen=True, slots=True)
class SegmentRequested:
    """A client wants to open a segment."""

    session_id: str
    request: SegmentRequest


@dataclass(frozen=True, slots=True)
class InputFinished:
    """The client has sent all input for a segment."""

    session_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class SegmentCancelled:
    """The client cancels a segment. The session stays open, so it can have another
    segment later.
    """

    session_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class ClientDone:
    """The client has closed its side. The session ends as soon as its current segment has ended."""

    session_id: str


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The session's stream has ended, either because the client cancelled it or because its process
    died.
    """

    session_id: str


@dataclass(frozen=True, slots=True)
class SessionFaulted:
    """A session ends because of an error outside the table."""

    session_id: str
    error: AntiphonError


# -- from a stream or a link -------------------------------------------------------------


class ChunkArrived(Struct, frozen=True):
    """A chunk, with the ID of the link on which it arrived. The ID is empty if the chunk arrived on
    the session's own stream.
    """

    chunk: Chunk
    link_id: str

    def refusal(self, error: AntiphonError) -> Refuse:
        """Return an instruction that reports `error` to the producer of this chunk."""
        chunk = self.chunk
        return Refuse(self.link_id, chunk.session_id, chunk.edge, error)


@dataclass(frozen=True, slots=True)
class ChunkMalformed:
    """A chunk that belongs to this session arrived on a link but can't be decoded."""

    session_id: str
    error: AntiphonError


class Credited(Struct, frozen=True):
    """A destination allows up to `positions` positions of a segment's output to be sent in
    total.
    """

    key: SegmentKey
    edge: str
    destination: Destination
    positions: int


@dataclass(frozen=True, slots=True)
class UpstreamProgressed:
    """An upstream stage is working on the segment but hasn't produced any output yet."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class ProducerGone:
    """An upstream stage was lost after completing its part of the segment."""

    key: SegmentKey
    producer: str


# -- from links --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkSuspended:
    """The link from an upstream process is broken, but may still be resumed."""

    link_id: str
    address: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The link from an upstream process is permanently lost."""

    link_id: str


@dataclass(frozen=True, slots=True)
class ChunksRefused:
    """A downstream stage rejects further chunks of a session. The error is `Cancelled` if the
    session has already ended there.
    """

    session_id: str
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class DestinationSuspended:
    """The link to a downstream process is broken, but may still be resumed."""

    address: str
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class DestinationLost:
    """A downstream process can't be reached. `unacknowledged` contains the sessions that have sent
    chunks which the process hasn't acknowledged.
    """

    address: str
    error: AntiphonError
    unacknowledged: frozenset[str] = frozenset()
    boot_id: str = ""


# -- from the engine and the clock -------------------------------------------------------


class SegmentStatus(Struct, frozen=True):
    """The status of a segment in the engine.

    `awaited` is the input edge that the segment is waiting for, or None if the segment can step.
    `accepted` is the number of chunks that the engine had accepted at that point.
    """

    awaited: str | None
    accepted: int


class EngineStepped(Struct, frozen=True):
    """The result of one engine round.

    `step_segments` is 0 if no step was performed. `worked_on` contains the segments that took part
    in the step or whose preparation made progress. `standing` contains the segments with a new
    status, and those that the engine worked on without producing output. `busy_s` is the engine
    time used by segments that were completed or released. `released` contains the cancelled
    segments that the engine has freed. If `error` is set, the state of the engine is unknown. If
    `fatal` is true, there won't be any more rounds.
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
        """Whether nothing happened in this round."""
        changed = self.events or self.standing or self.released
        return not (changed or self.step_segments or self.error)


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine is lost, or is in an unknown state, so all sessions fail."""

    error: AntiphonError


@dataclass(frozen=True, slots=True)
class DrainBegun:
    """The stage is shutting down. Segments in progress may finish, but sessions that have already
    had a segment can't open another one.
    """


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A deadline that the table had announced was reached."""


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
