"""The codes that a decoder receives. The chunks in which they arrive can have any size. Each chunk
is validated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from antiphon.errors import DataLoss, InvalidArgument
from antiphon.runtime.engine import InputChunk
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason


@dataclass(slots=True)
class CheckedCodes:
    """The codes of a segment on `edge`, in a uint16 tensor with the edge's name.

    The tensor of a chunk has the shape [n, groups], or [n] if `groups` is None. `entries` is the
    bound of all codes, or has a bound for each group. `count` codes have arrived. `limit` is their
    maximum number, or None if there is no maximum. Error messages call a code an `element`.
    """

    edge: str
    groups: int | None
    entries: int | Sequence[int]
    limit: int | None
    element: str = "code"
    count: int = 0
    finish_reason: FinishReason | None = None

    @property
    def finished(self) -> bool:
        """Whether all codes have arrived."""
        return self.finish_reason is not None

    def accept(self, chunk: InputChunk) -> Tensor:
        """Count the chunk's codes, and return them. Raises `DataLoss` or `InvalidArgument`."""
        check_order(chunk, self.edge, self.element, self.count, self.finish_reason)
        codes = read_codes(chunk, self.groups, self.entries)
        if self.limit is not None and self.count + len(codes) > self.limit:
            raise invalid_codes(self.edge, f"more than {self.limit} {self.element}s in a segment")
        self.count += len(codes)
        self.finish_reason = chunk.finish_reason
        return codes


@dataclass(slots=True)
class ReceivedCodes(CheckedCodes):
    """Codes of a segment that are kept until it is released."""

    _parts: list[Tensor] = field(default_factory=list)

    def accept(self, chunk: InputChunk) -> Tensor:
        """Add the chunk's codes, and return them. Raises `DataLoss` or `InvalidArgument`."""
        codes = CheckedCodes.accept(self, chunk)
        if len(codes):
            self._parts.append(codes)
        return codes

    @property
    def codes(self) -> Tensor:
        """All codes that have arrived, as one tensor. `count` must be above 0."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]


def check_order(
    chunk: InputChunk, edge: str, element: str, due: int, finish_reason: FinishReason | None
) -> None:
    """Check that the chunk is on the edge and starts with the element number `due`.

    `finish_reason` is that of the previous chunk. If it is set, no chunk may follow. Raises
    `DataLoss` or `InvalidArgument` if the chunk is invalid.
    """
    if chunk.edge != edge:
        raise InvalidArgument(
            f"there is no input edge {chunk.edge!r}; {element}s arrive on {edge!r}",
            edge=chunk.edge,
        )
    if finish_reason is not None:
        raise DataLoss(f"{edge}: a chunk came after the segment's last", edge=edge)
    if chunk.position != due:
        raise DataLoss(
            f"{edge}: {element} {due} was due, {element} {chunk.position} came", edge=edge
        )
    if chunk.segment_finished != (chunk.finish_reason is not None):
        raise DataLoss(f"{edge}: the last chunk, and no other, has a finish reason", edge=edge)


def read_codes(chunk: InputChunk, groups: int | None, entries: int | Sequence[int]) -> Tensor:
    """Return the chunk's codes as a uint16 tensor of shape [n, groups], or [n] without groups.

    They are in the tensor with the edge's name. `n` is 0 if the chunk only signals the end. Raises
    `InvalidArgument` if a code is not below `entries`, or below the entry of its group.
    """
    edge = chunk.edge
    row = () if groups is None else (groups,)
    if not chunk.tensors and chunk.segment_finished:
        return np.empty((0, *row), dtype=np.uint16)
    if set(chunk.tensors) != {edge}:
        raise invalid_codes(edge, f"one tensor of that name is due, {sorted(chunk.tensors)} came")
    codes = chunk.tensors[edge]
    if codes.dtype != np.uint16 or codes.ndim != 1 + len(row) or codes.shape[1:] != row:
        form = ", ".join(("n", *map(str, row)))
        raise invalid_codes(edge, f"must be uint16 [{form}], not {codes.dtype} {codes.shape}")
    if (excess := codes[codes >= np.asarray(entries)]).size:
        raise invalid_codes(edge, f"must be below {entries}, got {excess.max()}")
    return codes


def invalid_codes(edge: str, message: str) -> InvalidArgument:
    """Return the error for invalid codes."""
    return InvalidArgument(f"{edge}: {message}", field=edge, edge=edge)
