"""The instructions that the session table returns. The table makes all decisions, and `Stage`
carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.chunk import Chunk
from antiphon.values.segment import FinishReason, SegmentKey


class Destination(Struct, frozen=True):
    """The target of an output edge. It is either the address of a stage or an empty string for the
    session's own stream.

    `boot_id` identifies the target process, if known.
    """

    address: str = ""
    boot_id: str = ""


REPLY = Destination()
"""The session's own stream."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Admits a segment to the engine."""

    key: SegmentKey
    settings: SegmentSettings


class Feed(Struct, frozen=True):
    """Passes input for an admitted segment to the engine."""

    key: SegmentKey
    chunk: InputChunk


class Limit(Struct, frozen=True):
    """Limits the engine to `positions` positions on one edge. Once the segment has produced them,
    it must not step any more.
    """

    key: SegmentKey
    edge: str
    positions: int


@dataclass(frozen=True, slots=True)
class Release:
    """Releases a segment from the engine. If it was `cancelled`, the engine reports when the
    release is complete.
    """

    key: SegmentKey
    cancelled: bool = False


class Send(Struct, frozen=True):
    """Sends a chunk to a destination."""

    destination: Destination
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Opened:
    """Notifies the client that the session has been registered."""

    session_id: str


@dataclass(frozen=True, slots=True)
class SegmentOpened:
    """Notifies the client that the segment has been given a slot."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class SegmentRefused:
    """Notifies the client that no slot was free for the segment. The session is parked."""

    key: SegmentKey
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class Report:
    """Notifies the client that a segment has ended. Times are in seconds since the segment was
    opened.
    """

    key: SegmentKey
    finish_reason: FinishReason
    input_positions: int
    input_audio_positions: int
    input_image_positions: int
    input_cached_positions: int
    output_positions: int
    first_input_s: float
    first_output_s: float
    last_output_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Notifies the client that the engine is working on the segment, but has no output to send yet.

    `done` and `due` are the step counts reported by the engine, or 0 if the engine doesn't report
    any.
    """

    key: SegmentKey
    done: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class Suspended:
    """Notifies the client that the link of an edge is broken, but may still be resumed."""

    session_id: str
    edge: str
    address: str


@dataclass(frozen=True, slots=True)
class End:
    """Notifies the client that the session has ended. This is the last message, whether or not
    there is an error.
    """

    session_id: str
    error: AntiphonError | None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Notifies the producer that this session accepts no more chunks."""

    link_id: str
    session_id: str
    edge: str
    error: AntiphonError


class Grant(Struct, frozen=True):
    """Allows the producer of an edge to send up to `positions` positions of a segment in total."""

    link_id: str
    key: SegmentKey
    edge: str
    positions: int


EngineCommand = Admit | Feed | Limit | Release
Told = Opened | SegmentOpened | SegmentRefused | Report | Progress | Suspended | End
Instruction = EngineCommand | Send | Told | Refuse | Grant


def session_of(instruction: Instruction) -> str:
    """Return the ID of the session that an instruction belongs to."""
    match instruction:
        case Send(_, chunk):
            return chunk.session_id
        case Admit(key) | Feed(key) | Limit(key) | Release(key) | Grant(_, key):
            return key.session_id
        case SegmentOpened(key) | SegmentRefused(key) | Report(key) | Progress(key):
            return key.session_id
        case Opened(session_id) | Suspended(session_id) | End(session_id) | Refuse(_, session_id):
            return session_id
