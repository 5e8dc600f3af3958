"""The events that a session table handles, as values.

The behaviour of a stage is a pure function of these facts and their times. Passing the same list to
a new table produces the same instructions (see `antiphon_testkit.recording`).
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
    """The client has sent all of its input for a segment."""

    session_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class SegmentCancelled:
    """The client cancels a segment. The session stays open, and may open another segment."""

    session_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class ClientDone:
    """The client has closed its side. The session ends once its open segment has ended."""

    session_id: str


@dataclass(frozen=True, slots=True)
class StreamLost:
    """The session's stream has ended because the client cancelled it or its process died."""

    session_id: str


@dataclass(frozen=True, slots=True)
class SessionFaulted:
    """An error outside the table ends a session."""

    session_id: str
    error: AntiphonError


# -- from a stream or a link -------------------------------------------------------------


class ChunkArrived(Struct, frozen=True):
    """A chunk and the ID of the link on which it arrived. The ID is "" for the session's own
    stream.
    """

    chunk: Chunk
    link_id: str

    def refusal(self, error: AntiphonError) -> Refuse:
        """Return the instruction that reports `error` to the chunk's producer."""
        chunk = self.chunk
        return Refuse(self.link_id, chunk.session_id, chunk.edge, error)


@dataclass(frozen=True, slots=True)
class ChunkMalformed:
    """A chunk of this session arrived on a link but cannot be decoded."""

    session_id: str
    error: AntiphonError


class Credited(Struct, frozen=True):
    """A destination accepts up to `positions` positions of a segment's output in total."""

    key: SegmentKey
    edge: str
    destination: Destination
    positions: int


@dataclass(frozen=True, slots=True)
class UpstreamProgressed:
    """An upstream stage is working on the segment but has not produced any output yet."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class ProducerGone:
    """An upstream stage was lost after it had finished its part of the segment."""

    key: SegmentKey
    producer: str


# -- from links --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkSuspended:
    """The link from an upstream process broke. It may be resumed."""

    link_id: str
    address: str


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The link from an upstream process is lost permanently."""

    link_id: str


@dataclass(frozen=True, slots=True)
class ChunksRefused:
    """A downstream stage rejects further chunks of a session. The error is `Cancelled` if the
    session has ended there.
    """

    session_id: str
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class DestinationSuspended:
    """The link to a downstream process broke. It may be resumed."""

    address: str
    boot_id: str = ""


@dataclass(frozen=True, slots=True)
class DestinationLost:
    """A downstream process cannot be reached. `unacknowledged` contains the sessions with chunks
    that it has not acknowledged.
    """

    address: str
    error: AntiphonError
    unacknowledged: frozenset[str] = frozenset()
    boot_id: str = ""


# -- from the engine and the clock -------------------------------------------------------


class SegmentStatus(Struct, frozen=True):
    """The state of a segment in the engine.

    `awaited` is the input edge on which the segment is waiting, or None if it can step. `accepted`
    is the number of chunks that the engine had accepted at that time.
    """

    awaited: str | None
    accepted: int


class EngineStepped(Struct, frozen=True):
    """The result of one round of the engine.

    `step_segments` is 0 if the round had no step. `worked_on` contains the segments that took part
    in the step or whose preparation advanced. `standing` contains the segments whose status
    changed, and those that were worked on without producing output. `busy_s` is the engine time of
    segments that completed or were `released`. `released` are cancelled segments that the engine
    has freed. If `error` is set, the state of the engine is unknown. If `fatal` is true, there will
    be no further rounds.
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
        """Whether the round had no effect."""
        changed = self.events or self.standing or self.released
        return not (changed or self.step_segments or self.error)


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine is lost or its state is unknown, so every session fails."""

    error: AntiphonError


@dataclass(frozen=True, slots=True)
class DrainBegun:
    """The stage is shutting down. Segments that are open can finish, but a session that has had a
    segment cannot open another one.
    """


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A deadline that the table announced has been reached."""


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
