"""A decoder's input: codes in chunks of any size, whose order, number and form are checked."""

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
    """Codes of a segment on `edge`, in a tensor of the edge's name: uint16 [n, groups].

    Without `groups` the shape is [n]. Each is below `entries`, or below that of its group. `count`
    of at most `limit` have arrived. In errors, one is an `element`.
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
    """Codes that are kept until the segment is released."""

    _parts: list[Tensor] = field(default_factory=list)

    def accept(self, chunk: InputChunk) -> Tensor:
        """Add the chunk's codes, and return them. Raises `DataLoss` or `InvalidArgument`."""
        codes = CheckedCodes.accept(self, chunk)
        if len(codes):
            self._parts.append(codes)
        return codes

    @property
    def codes(self) -> Tensor:
        """All codes so far, uint16 [count, groups] or [count]; `count` must be above 0."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]


def check_order(
    chunk: InputChunk, edge: str, element: str, due: int, finish_reason: FinishReason | None
) -> None:
    """Raise unless the chunk is on the edge and starts with element number `due`.

    No chunk follows one with a finish reason. Raises `DataLoss` or `InvalidArgument`.
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
    """Return the chunk's codes, uint16 [n, groups] or [n]; n is 0 for a finish without codes.

    They are in the tensor with the edge's name. Raises `InvalidArgument` for codes that the decoder
    does not support: all must be below `entries`, or those of each group below its number.
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
