"""The segments of a session and the delivery of their output. This module has no dependencies."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class FinishReason(enum.Enum):
    """The reason why a segment's output has ended. The members correspond to those of
    `antiphon.v1.FinishReason`.
    """

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class Delivery(enum.Enum):
    """How the output on an edge is delivered. The members correspond to those of
    `antiphon.v1.Delivery`.
    """

    STREAM = "stream"
    WHOLE = "whole"


class SegmentKey(NamedTuple):
    """Identifies one segment of one session."""

    session_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """The number of frames in each chunk. The first chunk has `first` frames, the following ones
    have the sizes in `ramp`, and all others have `steady` frames.
    """

    first: int
    ramp: tuple[int, ...]
    steady: int
