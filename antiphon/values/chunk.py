"""The unit of data on an edge. It is sent as the proto message `Chunk`."""

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
"""The maximum length of a session ID or an edge name, in characters. There is a limit because
stages remember the IDs of sessions that have ended.
"""


class Chunk(Struct, frozen=True):
    """Part of the data on one edge of a segment.

    `position` is the index of its first token, row, frame or sample within the segment.
    `finish_reason` is set if and only if `segment_finished` is set. Tensors must not be modified
    once the chunk has been created.
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
        """The segment that the chunk belongs to."""
        return SegmentKey(self.session_id, self.segment)

    @property
    def size_bytes(self) -> int:
        """The size of the tensor data in bytes."""
        size = 0
        for tensor in self.tensors.values():
            size += tensor.nbytes
        return size


def concatenate(pieces: list[Tensors]) -> dict[str, Tensor]:
    """Concatenate consecutive pieces of an edge. Tensors that have the same name are joined along
    axis 0.
    """
    parts: dict[str, list[Tensor]] = {}
    for piece in pieces:
        for name, tensor in piece.items():
            parts.setdefault(name, []).append(tensor)
    return {
        name: tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
        for name, tensors in parts.items()
    }
