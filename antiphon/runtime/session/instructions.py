"""What the session table requests. The table decides; `Stage` carries out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from antiphon.errors import AntiphonError
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.chunk import Chunk
from antiphon.values.segment import FinishReason, SegmentKey


class Destination(Struct, frozen=True):
    """The target of an output edge: a stage's address, or "" for the session's own stream.

    `boot_id` identifies the target process, if known.
    """

    address: str = ""
    boot_id: str = ""


REPLY = Destination()
"""The session's own stream."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Engine: admit a segment."""

    key: SegmentKey
    settings: SegmentSettings


class Feed(Struct, frozen=True):
    """Engine: input of an admitted segment."""

    key: SegmentKey
    chunk: InputChunk


class Limit(Struct, frozen=True):
    """Engine: step a segment only while it has produced fewer than `positions` on an edge."""

    key: SegmentKey
    edge: str
    positions: int


@dataclass(frozen=True, slots=True)
class Release:
    """Engine: free a segment. The release of a `cancelled` one is reported when complete."""

    key: SegmentKey
    cancelled: bool = False


class Send(Struct, frozen=True):
    """Ports: send a chunk to a destination."""

    destination: Destination
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Opened:
    """Stream: the session is registered."""

    session_id: str


@dataclass(frozen=True, slots=True)
class SegmentOpened:
    """Stream: the segment has its slot."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class SegmentRefused:
    """Stream: no slot was free for the segment. The session is parked."""

    key: SegmentKey
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class Report:
    """Stream: a segment has ended. Times are in seconds since the segment was opened."""

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
    """Stream: the engine is working on the segment but has no output to send yet.

    `done` and `due` are the steps that it reports, 0 if none.
    """

    key: SegmentKey
    done: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class Suspended:
    """Stream: the link that an edge needs broke and may be resumed."""

    session_id: str
    edge: str
    address: str


@dataclass(frozen=True, slots=True)
class End:
    """Stream: the session has ended. An error is its last message."""

    session_id: str
    error: AntiphonError | None


@dataclass(frozen=True, slots=True)
class Refuse:
    """Link: further chunks of this session are rejected."""

    link_id: str
    session_id: str
    edge: str
    error: AntiphonError


class Grant(Struct, frozen=True):
    """Link: the producer of an edge may send up to `positions` of the segment in total."""

    link_id: str
    key: SegmentKey
    edge: str
    positions: int


EngineCommand = Admit | Feed | Limit | Release
Told = Opened | SegmentOpened | SegmentRefused | Report | Progress | Suspended | End
Instruction = EngineCommand | Send | Told | Refuse | Grant
Instructions = Sequence[Instruction]


def session_of(instruction: Instruction) -> str:
    """Return the id of the session that an instruction concerns."""
    match instruction:
        case Send(_, chunk):
            return chunk.session_id
        case Admit(key) | Feed(key) | Limit(key) | Release(key) | Grant(_, key):
            return key.session_id
        case SegmentOpened(key) | SegmentRefused(key) | Report(key) | Progress(key):
            return key.session_id
        case Opened(session_id) | Suspended(session_id) | End(session_id) | Refuse(_, session_id):
            return session_id
