"""The input of a decoder that needs all of it at once. It consists of IDs that arrive in chunks of
any size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from antiphon.errors import DataLoss, InvalidArgument
from antiphon.runtime.engine import InputChunk
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason
from antiphon_services.vocoder.audio_segment import invalid_codes


@dataclass(slots=True)
class WholeIds:
    """The IDs of a segment on `edge`. They are below `entries`, there are at most `limit` of them,
    and their tensor has the name of the edge.

    `count` is the number of IDs that have arrived. Once `finish_reason` is set, these are all IDs.
    """

    edge: str
    entries: int
    limit: int
    count: int = 0
    finish_reason: FinishReason | None = None
    _parts: list[Tensor] = field(default_factory=list)

    def accept(self, chunk: InputChunk) -> None:
        """Add the IDs of a chunk, uint16 [n]. Raises `DataLoss` or `InvalidArgument` if they are
        not valid.
        """
        edge = self.edge
        if chunk.edge != edge:
            raise InvalidArgument(f"there is no input edge {chunk.edge!r}", edge=chunk.edge)
        if self.finish_reason is not None:
            raise DataLoss(f"{edge}: a chunk came after the segment's last", edge=edge)
        if chunk.position != self.count:
            message = f"{edge}: id {self.count} was due, id {chunk.position} came"
            raise DataLoss(message, edge=edge)
        if chunk.segment_finished != (chunk.finish_reason is not None):
            raise DataLoss(f"{edge}: the last chunk, and no other, has a finish reason", edge=edge)
        ids = self._read(chunk)
        if self.count + len(ids) > self.limit:
            raise invalid_codes(edge, f"more than {self.limit} in a segment")
        self.count += len(ids)
        self.finish_reason = chunk.finish_reason
        if len(ids):
            self._parts.append(ids)

    def _read(self, chunk: InputChunk) -> Tensor:
        edge = self.edge
        if not chunk.tensors and chunk.segment_finished:
            return np.empty(0, np.uint16)
        if set(chunk.tensors) != {edge}:
            came = sorted(chunk.tensors)
            raise invalid_codes(edge, f"one tensor of that name is due, {came} came")
        ids = chunk.tensors[edge]
        if ids.dtype != np.uint16 or ids.ndim != 1:
            raise invalid_codes(edge, f"must be uint16 [n], not {ids.dtype} {ids.shape}")
        if ids.size and ids.max() >= self.entries:
            raise invalid_codes(edge, f"must be below {self.entries}, got {ids.max()}")
        return ids

    @property
    def ids(self) -> Tensor:
        """All IDs as uint16 [count]."""
        return np.concatenate(self._parts) if self._parts else np.empty(0, np.uint16)
