"""Segments of a session and the delivery of their output. This module has no dependencies."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class FinishReason(enum.Enum):
    """The reason why the output of a segment ended. The members mirror
    `antiphon.v1.FinishReason`.
    """

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class Delivery(enum.Enum):
    """How the output of an edge is delivered. The members mirror `antiphon.v1.Delivery`."""

    STREAM = "stream"
    WHOLE = "whole"


class SegmentKey(NamedTuple):
    """Identifies one segment of one session."""

    session_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """The number of frames in each chunk. The first chunk has `first` frames, the next ones follow
    `ramp`, and all later ones have `steady` frames.
    """

    first: int
    ramp: tuple[int, ...]
    steady: int
