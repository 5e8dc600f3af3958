"""The unit of data on an edge. Its wire form is `Chunk` in proto."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from antiphon.values.segment import FinishReason, SegmentKey

Tensor = npt.NDArray[Any]
Tensors = Mapping[str, Tensor]

MAX_NAME = 128
"""Longest session id or edge name, in characters; ids of ended sessions are kept."""


class Chunk(Struct, frozen=True):
    """A piece of one edge of one segment.

    `position` is the index within the segment of the first token, row, frame or sample in it.
    `finish_reason` is set exactly when `segment_finished` is. Tensors must not be modified after
    the chunk was created.
    """

    session_id: str
    edge: str
    segment: int = 0
    sequence: int = 0
    position: int = 0
    tensors: Tensors = {}
    segment_finished: bool = False
    finished: bool = False
    finish_reason: FinishReason | None = None
    prime: bool = False

    @property
    def key(self) -> SegmentKey:
        """The chunk's segment."""
        return SegmentKey(self.session_id, self.segment)

    @property
    def size_bytes(self) -> int:
        """Bytes of tensor data."""
        size = 0
        for tensor in self.tensors.values():
            size += tensor.nbytes
        return size


def concatenate(pieces: list[Tensors]) -> dict[str, Tensor]:
    """Concatenate the tensors of consecutive pieces of an edge along axis 0, name by name."""
    parts: dict[str, list[Tensor]] = {}
    for piece in pieces:
        for name, tensor in piece.items():
            parts.setdefault(name, []).append(tensor)
    return {
        name: tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
        for name, tensors in parts.items()
    }
