"""The waiting requests in the order in which they may begin. Pure.

- A request with a higher priority is before all requests with a lower one.
- Keys of one priority take turns, in rounds. The requests of a key are in successive rounds, in the
  order of their rank, and the requests of a round are in the order of theirs. Another key therefore
  waits for at most one turn of a key, regardless of how many requests that key sends. A key that
  begins to wait joins the current round: it neither waits for the backlog of other keys, nor
  catches up on earlier rounds.
- A round is as long as the mean duration of a call, and the progress of a key is the duration of
  its calls, so that keys with long calls have fewer turns. The difference of a call from the mean
  counts when the call is over, but a turn costs at least half of the mean, which limits the turns
  of a key while calls become shorter.
- A priority without waiting requests has no state.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon_gateway.admission.admission_request import QueueEntry
from antiphon_gateway.admission.priority import Priority

MOST_OWED = 64
"""Rounds that a key may have to let pass for the calls that it had."""
UNKNOWN_S = 1.0
"""A call's time before any has been measured."""


class Position(NamedTuple):
    """The place of a request in the line; lower places are earlier."""

    priority: int
    round: int
    rank: float
    number: int


@dataclass(slots=True)
class _PriorityLane:
    """Those of one priority. `served_s` is what the key had that was served last, when it was its
    turn; `had_s` what each key had that waits or had more."""

    served_s: float = 0.0
    had_s: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, list[QueueEntry]] = field(default_factory=dict)

    def start_s(self, key: str) -> float:
        """When it is a key's turn."""
        return max(self.had_s.get(key, 0.0), self.served_s)


class WaitingLine:
    """See the head of this file. A request that is added waits until it is removed; `charge` it
    when it begins, and `settle` what it took. `call_s` is what a call takes on average."""

    def __init__(self) -> None:
        self._lanes = {priority: _PriorityLane() for priority in Priority}
        self._entries: dict[int, QueueEntry] = {}
        self.size_bytes = 0
        self.call_s = UNKNOWN_S

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: QueueEntry) -> bool:
        return entry.number in self._entries

    def __iter__(self) -> Iterator[QueueEntry]:
        """Iterate over a snapshot in order; requests already returned may be removed during the
        iteration."""
        for _, entry in self.positions():
            yield entry

    def positions(self) -> Iterator[tuple[Position, QueueEntry]]:
        """All who wait and where, in order."""
        for priority, lane in self._lanes.items():
            keys = [self._of_key(priority, lane, key) for key in lane.waiting]
            yield from heapq.merge(*keys)

    def arrivals(self) -> Iterator[QueueEntry]:
        """All who wait, in no order."""
        return iter(self._entries.values())

    def find(self, number: int) -> QueueEntry | None:
        """The one with that number, if it waits."""
        return self._entries.get(number)

    def before(self, entry: QueueEntry) -> Iterator[QueueEntry]:
        """Those who may begin before one that waits, or would come as the last of its key."""
        last = None if entry in self else self._last_of_key(entry)
        for position, each in self.positions():
            if each is entry or (last is not None and position > last):
                return
            yield each

    def behind(self, entry: QueueEntry) -> list[QueueEntry]:
        """Those who may begin only after one that waits."""
        line = list(self)
        return line[line.index(entry) + 1 :]

    def add(self, entry: QueueEntry) -> None:
        """Let it wait."""
        lane = self._lanes[entry.request.priority]
        insort(lane.waiting.setdefault(entry.request.key, []), entry, key=lambda each: each.order)
        self._entries[entry.number] = entry
        self.size_bytes += entry.request.size_bytes

    def remove(self, entry: QueueEntry) -> None:
        """It waits no more."""
        request, lane = entry.request, self._lanes[entry.request.priority]
        of_key = lane.waiting[request.key]
        of_key.remove(entry)
        del self._entries[entry.number]
        self.size_bytes -= request.size_bytes
        if not of_key:
            del lane.waiting[request.key]
            if not lane.waiting:
                lane.served_s = 0.0
                lane.had_s.clear()

    def charge(self, entry: QueueEntry) -> None:
        """It waits and is about to begin: the turn of its key."""
        request, lane = entry.request, self._lanes[entry.request.priority]
        lane.served_s = lane.start_s(request.key)
        entry.charged_s = request.count * self.call_s
        lane.had_s[request.key] = lane.served_s + entry.charged_s

    def settle(self, entry: QueueEntry, took_s: float) -> None:
        """It is over, and each of its calls has taken so long; 0: it was none."""
        request, lane = entry.request, self._lanes[entry.request.priority]
        cost_s = max(request.count * took_s, entry.charged_s / 2) if took_s else 0.0
        more_s, entry.charged_s = cost_s - entry.charged_s, 0.0
        if lane.waiting:
            had_s = min(lane.start_s(request.key) + more_s, lane.served_s + MOST_OWED * self.call_s)
            lane.had_s[request.key] = had_s
            if had_s <= lane.served_s:
                del lane.had_s[request.key]

    def crowding(
        self, newcomer: QueueEntry, *, most: int, most_bytes: int
    ) -> list[QueueEntry] | None:
        """Return the requests to deny so that the newest fits among `most`, or None to deny the
        newest.

        Candidates from the end of the line have a lower priority, or a key with so many earlier
        requests that their turn is in a later round than the newest.
        """
        count, size_bytes, gone = len(self), self.size_bytes, list[QueueEntry]()
        line = list(self.positions())
        own = next(position for position, each in line if each is newcomer)
        while count > most or size_bytes > most_bytes:
            position, last = line.pop()
            is_same_key = (
                last.request.key == newcomer.request.key and position.priority == own.priority
            )
            if is_same_key or position[:2] <= own[:2]:
                return None
            gone.append(last)
            count, size_bytes = count - 1, size_bytes - last.request.size_bytes
        return gone

    def _of_key(
        self, priority: Priority, lane: _PriorityLane, key: str
    ) -> Iterator[tuple[Position, QueueEntry]]:
        start_s = lane.start_s(key)
        for entry in tuple(lane.waiting[key]):
            turn = self._round(start_s - lane.served_s)
            yield Position(priority.place, turn, entry.rank, entry.number), entry
            start_s += entry.request.count * self.call_s

    def _last_of_key(self, entry: QueueEntry) -> Position:
        request, lane = entry.request, self._lanes[entry.request.priority]
        waiting = sum(each.request.count for each in lane.waiting.get(request.key, ()))
        behind_s = lane.start_s(request.key) - lane.served_s + waiting * self.call_s
        return Position(request.priority.place, self._round(behind_s), math.inf, 0)

    def _round(self, behind_s: float) -> int:
        """Return the round of a key's next request, given the progress of the others.

        The value is rounded, so that a key with calls below the mean does not have two turns in one
        round.
        """
        return math.floor(behind_s / self.call_s + 0.5)
