"""Selects the hidden rows to send in each step: the connector's policy, without vLLM.

Invariants: a request's rows are sent in order of position and once, in the step that computed them,
or in its first step if they were in the prefix cache. Rows that a preempted request computes again
are below `sent` and are not sent again. A step sends a bounded number of rows; the rest stays in
paged memory and is sent in the request's next steps or at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TAP_LAYER = "antiphon_tap.1000"
"""The tap's layer name; vLLM requires exactly one integer in it, unique among layers."""
WANTED = "antiphon_rows"
"""Key in a request's `kv_transfer_params` of a `wanted` value."""
NO_END = 1 << 60
"""More positions than any request has."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Rows of positions `start` to `start + count` of the request `number`."""

    number: int
    start: int
    count: int


def wanted(
    number: int, positions: npt.NDArray[np.intp], reply_from: int | None = None
) -> dict[str, Any]:
    """Return the `kv_transfer_params` that request, as `number`, the rows at ascending positions.

    Includes all from `reply_from` on, if given.
    """
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    runs = [[int(run[0]), int(run[-1]) + 1] for run in np.split(positions, cuts) if len(run)]
    if reply_from is not None:
        runs.append([reply_from, NO_END])
    return {WANTED: {"number": number, "ranges": runs}}


@dataclass(slots=True)
class Wanted:
    """The rows that a request needs: ascending ranges; those below `sent` were sent.

    `computed` counts the positions with available rows.
    """

    number: int
    ranges: Sequence[tuple[int, int]]
    sent: int = 0
    computed: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, Any] | None) -> Wanted | None:
        """Read `kv_transfer_params`; None if no rows are requested."""
        value = (parameters or {}).get(WANTED)
        if value is None:
            return None
        return cls(value["number"], [(start, end) for start, end in value["ranges"]])

    @property
    def waiting(self) -> int:
        """Number of available rows that were not sent."""
        return sum(span.count for span in self._spans())

    def take(self, room: int) -> list[RowSpan]:
        """Return the next spans to send, at most `room` rows in total."""
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
    """Return what a step sends, at most `room` rows in total.

    Requests with the fewest waiting rows come first, so that no reply waits for a long prompt.
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
        """Add the spans of a request whose blocks are `table`."""
        blocks = np.asarray(table, dtype=np.int64)
        for span in spans:
            positions = np.arange(span.start, span.start + span.count)
            self.spans.append(span)
            self.slots.append(blocks[positions // block_size] * block_size + positions % block_size)
