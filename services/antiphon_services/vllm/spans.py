"""Selects the hidden rows to send in each step. This is the connector's policy. It doesn't depend
on vLLM.

Each row of a request is sent exactly once, in order of position. Normally, this happens in the step
that computes the row. If the row was in the prefix cache, it happens in the request's first step. A
preempted request may compute rows again. These are below `sent`, so they are not sent again. The
number of rows that a step sends is limited. The remaining rows stay in paged memory and are sent in
later steps of the request or at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TAP_LAYER = "antiphon_tap.1000"
"""The name of the tap's layer. vLLM requires a layer name to contain exactly one integer, which
must be unique.
"""
WANTED = "antiphon_rows"
"""The key under which a request's `kv_transfer_params` contain the result of `wanted`."""
NO_END = 1 << 60
"""A number that exceeds the number of positions in any request."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The rows at the positions from `start` to `start + count`, for request `number`."""

    number: int
    start: int
    count: int


def wanted(
    number: int, positions: npt.NDArray[np.intp], reply_from: int | None = None
) -> dict[str, Any]:
    """Return `kv_transfer_params` that request the rows at the given positions. The positions must
    be in ascending order, and the rows are sent under `number`.

    If `reply_from` is given, the rows at all positions from there onwards are included.
    """
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    runs = [[int(run[0]), int(run[-1]) + 1] for run in np.split(positions, cuts) if len(run)]
    if reply_from is not None:
        runs.append([reply_from, NO_END])
    return {WANTED: {"number": number, "ranges": runs}}


@dataclass(slots=True)
class Wanted:
    """The rows that a request needs, as ascending ranges. All rows below `sent` have already been
    sent.

    `computed` is the number of positions whose rows are available.
    """

    number: int
    ranges: Sequence[tuple[int, int]]
    sent: int = 0
    computed: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, Any] | None) -> Wanted | None:
        """Parse `kv_transfer_params`. Returns None if no rows are requested."""
        value = (parameters or {}).get(WANTED)
        if value is None:
            return None
        return cls(value["number"], [(start, end) for start, end in value["ranges"]])

    @property
    def waiting(self) -> int:
        """The number of rows that are available but haven't been sent."""
        return sum(span.count for span in self._spans())

    def take(self, room: int) -> list[RowSpan]:
        """Return the next spans to send, with a total of at most `room` rows."""
        taken = []
        for span in self._spans():
            count = min(span.count, room)
            if count:
                taken.append(RowSpan(self.number, span.start, count))
                self.sent = span.start + count
                room -= count
        return taken

    def _spans(self) -> list[RowSpan]:
        cut = [(max(start, self.sent), min(end, self.computed)) for start, end in self.ranges]
        return [RowSpan(self.number, start, end - start) for start, end in cut if start < end]


def share(requests: Collection[Wanted], room: int) -> list[tuple[Wanted, list[RowSpan]]]:
    """Return the spans to send in a step, with a total of at most `room` rows.

    Requests with the fewest waiting rows come first, so that no reply has to wait for a long
    prompt.
    """
    shares = []
    for request in sorted(requests, key=lambda each: each.waiting):
        if spans := request.take(room):
            shares.append((request, spans))
            room -= sum(span.count for span in spans)
    return shares


@dataclass(slots=True)
class StepRows:
    """All spans of a step, and the slots of their rows in paged memory, in the same order."""

    spans: list[RowSpan] = field(default_factory=list)
    slots: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, spans: Sequence[RowSpan], table: Sequence[int], block_size: int) -> None:
        """Add the spans of a request. `table` lists its blocks."""
        blocks = np.asarray(table, dtype=np.int64)
        for span in spans:
            positions = np.arange(span.start, span.start + span.count)
            self.spans.append(span)
            self.slots.append(blocks[positions // block_size] * block_size + positions % block_size)
