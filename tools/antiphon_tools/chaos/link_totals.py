"""Counts what the links between the stages have carried during a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from antiphon.v1 import stage_pb2

COUNTED = ("carried.ring", "carried.stream", "damaged", "reconnected")
"""The names of counters of a link (`antiphon.transport.settings.LinkState`)."""


class LinkTotals:
    """The sums over all links, including those that were lost and replaced.

    The sums are lower bounds, because what a process counts between the last observation and its
    end is lost.
    """

    def __init__(self) -> None:
        self._total: Counter[str] = Counter()
        self._before: dict[tuple[str, bool, str], Mapping[str, int]] = {}

    def observe(self, links: Mapping[str, Sequence[stage_pb2.LinkState]]) -> None:
        """Add what has been counted since the last call. `links` contains the links of each
        process.
        """
        for name, states in links.items():
            for state in states:
                key = name, state.outgoing, state.peer_address
                counts = {each: state.counts.get(each, 0) for each in COUNTED}
                if not state.outgoing:
                    # Both ends of a link count its reconnections.
                    counts["reconnected"] = 0
                before = self._before.get(key, {})
                if any(counts[each] < before.get(each, 0) for each in COUNTED):
                    before = {}  # The link was replaced by another one.
                self._total.update({e: count - before.get(e, 0) for e, count in counts.items()})
                self._before[key] = counts

    def __str__(self) -> str:
        total = self._total
        return (
            f"links: {total['carried.ring']} messages in rings, {total['carried.stream']} on "
            f"streams; {total['damaged']} messages or rings were damaged; links have reconnected "
            f"{total['reconnected']} times"
        )
