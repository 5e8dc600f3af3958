"""Selects the hidden rows to send in each step. This is the policy of the connector and does not
depend on vLLM.

Invariants: the rows of a request are sent once, in order of position. They are sent in the step
that computed them, or in the first step of the request if they were in the prefix cache. If a
preempted request computes rows again, they are below `sent` and are not sent again. The number of
rows that a step sends is limited. The other rows remain in paged memory and are sent in the next
steps of the request or at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TAP_LAYER = "antiphon_tap.1000"
"""The name of the tap's layer. vLLM requires that it contains exactly one integer, which must be
unique among the layers.
"""
WANTED = "antiphon_rows"
"""The key of a `wanted` value in the `kv_transfer_params` of a request."""
NO_END = 1 << 60
"""A number that is greater than the number of positions in any request."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The rows of the positions `start` to `start + count` of request `number`."""

    number: int
    start: int
    count: int


def wanted(
    number: int, positions: npt.NDArray[np.intp], reply_from: int | None = None
) -> dict[str, Any]:
    """Return `kv_transfer_params` that request, under `number`, the rows at the given positions,
    which are in ascending order.

    If `reply_from` is given, all positions from there onwards are included.
    """
    cuts = np.flatnonzero(np.diff(positions) != 1) + 1
    runs = [[int(run[0]), int(run[-1]) + 1] for run in np.split(positions, cuts) if len(run)]
    if reply_from is not None:
        runs.append([reply_from, NO_END])
    return {WANTED: {"number": number, "ranges": runs}}


@dataclass(slots=True)
class Wanted:
    """The rows that a request needs, as ascending ranges. Rows below `sent` have already been sent.

    `computed` is the number of positions whose rows are available.
    """

    number: int
    ranges: Sequence[tuple[int, int]]
    sent: int = 0
    computed: int = 0

    @classmethod
    def of(cls, parameters: Mapping[str, Any] | None) -> Wanted | None:
        """Read `kv_transfer_params`. Returns None if no rows are requested."""
        value = (parameters or {}).get(WANTED)
        if value is None:
            return None
        return cls(value["number"], [(start, end) for start, end in value["ranges"]])

    @property
    def waiting(self) -> int:
        """The number of rows that are available but have not been sent."""
        return sum(span.count for span in self._spans())

    def take(self, room: int) -> list[RowSpan]:
        """Return the next spans to send. They have at most `room` rows in total."""
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
    """Return what a step sends. It has at most `room` rows in total.

    The requests that have the fewest waiting rows come first, so that no reply waits for a long
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
    """All spans of a step, and the slots of their rows in paged memory in the same order."""

    spans: list[RowSpan] = field(default_factory=list)
    slots: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, spans: Sequence[RowSpan], table: Sequence[int], block_size: int) -> None:
        """Add the spans of a request whose blocks are listed in `table`."""
        blocks = np.asarray(table, dtype=np.int64)
        for span in spans:
            positions = np.arange(span.start, span.start + span.count)
            self.spans.append(span)
            self.slots.append(blocks[positions // block_size] * block_size + positions % block_size)
