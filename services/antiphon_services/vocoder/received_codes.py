"""The codes that a decoder receives. They arrive in chunks of any size, and each chunk is
validated.
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
    """A segment's codes on `edge`, which arrive in a uint16 tensor with the same name as the edge.

    A chunk's tensor has the shape [n, groups], or [n] if `groups` is None. All codes must be below
    `entries`, which is either a single bound or has one bound per group. `count` is the number of
    codes received so far. `limit` is the maximum number of codes, or None if there is no limit.
    Error messages refer to a code as an `element`.
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
        """Count a chunk's codes and return them. Raises `DataLoss` or `InvalidArgument`."""
        check_order(chunk, self.edge, self.element, self.count, self.finish_reason)
        codes = read_codes(chunk, self.groups, self.entries)
        if self.limit is not None and self.count + len(codes) > self.limit:
            raise invalid_codes(
                self.edge, f"the segment has more than {self.limit} {self.element}s"
            )
        self.count += len(codes)
        self.finish_reason = chunk.finish_reason
        return codes


@dataclass(slots=True)
class ReceivedCodes(CheckedCodes):
    """A segment's codes, which are kept until it is released."""

    _parts: list[Tensor] = field(default_factory=list)

    def accept(self, chunk: InputChunk) -> Tensor:
        """Add a chunk's codes and return them. Raises `DataLoss` or `InvalidArgument`."""
        codes = CheckedCodes.accept(self, chunk)
        if len(codes):
            self._parts.append(codes)
        return codes

    @property
    def codes(self) -> Tensor:
        """All codes received so far, as one tensor. `count` must be at least 1."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]


def check_order(
    chunk: InputChunk, edge: str, element: str, due: int, finish_reason: FinishReason | None
) -> None:
    """Check that the chunk is on the edge and starts with element number `due`.

    `finish_reason` is that of the previous chunk. If it is set, no other chunk may follow. Raises
    `DataLoss` or `InvalidArgument` if the chunk is invalid.
    """
    if chunk.edge != edge:
        raise InvalidArgument(
            f"unknown input edge {chunk.edge!r}; {element}s must be sent on {edge!r}",
            edge=chunk.edge,
        )
    if finish_reason is not None:
        raise DataLoss(f"{edge}: received a chunk after the last one", edge=edge)
    if chunk.position != due:
        raise DataLoss(
            f"{edge}: received {element} {chunk.position} instead of {element} {due}", edge=edge
        )
    if chunk.segment_finished != (chunk.finish_reason is not None):
        raise DataLoss(
            f"{edge}: the last chunk, and only this one, must have a finish reason", edge=edge
        )


def read_codes(chunk: InputChunk, groups: int | None, entries: int | Sequence[int]) -> Tensor:
    """Return a chunk's codes as a uint16 tensor of shape [n, groups], or [n] if there are no
    groups.

    The codes are in the tensor that has the same name as the edge. `n` is 0 if the chunk only
    signals the end. Raises `InvalidArgument` if a code is not below `entries`, or not below the
    bound of its group.
    """
    edge = chunk.edge
    row = () if groups is None else (groups,)
    if not chunk.tensors and chunk.segment_finished:
        return np.empty((0, *row), dtype=np.uint16)
    if set(chunk.tensors) != {edge}:
        raise invalid_codes(
            edge, f"must be the only tensor of the chunk, got {sorted(chunk.tensors)}"
        )
    codes = chunk.tensors[edge]
    if codes.dtype != np.uint16 or codes.ndim != 1 + len(row) or codes.shape[1:] != row:
        form = ", ".join(("n", *map(str, row)))
        raise invalid_codes(
            edge, f"must be uint16 with the shape [{form}], got {codes.dtype} {codes.shape}"
        )
    if (excess := codes[codes >= np.asarray(entries)]).size:
        raise invalid_codes(edge, f"must be below {entries}, got {excess.max()}")
    return codes


def invalid_codes(edge: str, message: str) -> InvalidArgument:
    """Return the error for invalid codes."""
    return InvalidArgument(f"{edge}: {message}", field=edge, edge=edge)
