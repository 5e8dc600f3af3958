"""Segments of a session and the delivery of their output; without dependencies."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class FinishReason(enum.Enum):
    """Why a segment's output ended; mirrors `antiphon.v1.FinishReason`."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class Delivery(enum.Enum):
    """How an edge's output is delivered; mirrors `antiphon.v1.Delivery`."""

    STREAM = "stream"
    WHOLE = "whole"


class SegmentKey(NamedTuple):
    """Identifies one segment of one session."""

    session_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """Frames per chunk: `first`, then each of `ramp`, then `steady` for all others."""

    first: int
    ramp: tuple[int, ...]
    steady: int
