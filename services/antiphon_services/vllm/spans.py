"""Which hidden rows leave in which step: what decides in the connector, without vLLM.

Laws: per request the rows leave in order of position and once, in the step that computed
them or, for those that a prefix-cache hit spared, in its first step. What a preempted
request computes again lies below `sent` and does not leave again. A step has room for so many
rows; those beyond stay in paged memory, and leave in the request's next steps or at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TAP_LAYER = "antiphon_tap.1000"
"""The tap's layer name; vLLM wants exactly one integer in it, that no other layer has."""
WANTED = "antiphon_rows"
"""Key in a request's `kv_transfer_params` of a `wanted` value."""
NO_END = 1 << 60
"""No request has so many positions."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows of positions `start` to `start + count` of the request `number`."""

    number: int
    start: int
    count: int


def wanted(
    number: int, positions: npt.NDArray[np.intp], reply_from: int | None = None
) -> dict[str, Any]:
    """The `kv_transfer_params` that ask, as `number`, for the rows at ascending positions, and
    for all from `reply_from` on."""
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    runs = [[int(run[0]), int(run[-1]) + 1] for run in np.split(positions, cuts) if len(run)]
    if reply_from is not None:
        runs.append([reply_from, NO_END])
    return {WANTED: {"number": number, "ranges": runs}}


@dataclass(slots=True)
class Wanted:
    """The rows that a request wants: ascending ranges, of which those below `sent` have left.

    `computed` counts the positions that have rows.
    """

    number: int
    ranges: Sequence[tuple[int, int]]
    sent: int = 0
    computed: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, Any] | None) -> Wanted | None:
        """Read `kv_transfer_params`; None when no rows are wanted."""
        told = (parameters or {}).get(WANTED)
        if told is None:
            return None
        return cls(told["number"], [(start, end) for start, end in told["ranges"]])

    @property
    def waiting(self) -> int:
        """How many of the rows that are there have not left."""
        return sum(span.count for span in self._spans())

    def take(self, room: int) -> list[RowSpan]:
        """The next spans that leave, at most `room` rows together."""
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
    """What leaves in a step, at most `room` rows of all; whoever has fewest waiting goes first,
    so that nobody's reply waits behind a long prompt."""
    shares = []
    for request in sorted(requests, key=lambda each: each.waiting):
        if spans := request.take(room):
            shares.append((request, spans))
            room -= sum(span.count for span in spans)
    return shares


@dataclass(slots=True)
class StepRows:
    """All spans of a step, and the slots in paged memory of their rows, in the same order."""

    spans: list[RowSpan] = field(default_factory=list)
    slots: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, spans: Sequence[RowSpan], table: Sequence[int], block_size: int) -> None:
        """Note the spans of a request whose blocks are `table`."""
        blocks = np.asarray(table, dtype=np.int64)
        for span in spans:
            positions = np.arange(span.start, span.start + span.count)
            self.spans.append(span)
            self.slots.append(blocks[positions // block_size] * block_size + positions % block_size)
