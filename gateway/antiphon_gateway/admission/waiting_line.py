"""Keeps the waiting requests in the order in which they may start. This module performs no I/O.

- A request with a higher priority comes before all requests with a lower priority.
- Keys with the same priority take turns in rounds. The requests of a key are assigned to successive
  rounds by rank, and the requests within a round are ordered by rank as well. No matter how many
  requests a key sends, another key has to wait for at most one of its turns. A key that starts to
  wait joins the current round. It neither waits for the backlog of other keys nor makes up for
  earlier rounds.
- A round is as long as the mean call duration, and a key advances by the duration of its calls, so
  keys with long calls get fewer turns. When a call ends, the difference between its duration and
  the mean is settled. A turn always costs at least half of the mean, which limits the number of
  turns that a key can get while calls are becoming shorter.
- A priority that has no waiting requests has no state.
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
"""The maximum number of rounds that a key has to skip because of its previous calls."""
UNKNOWN_S = 1.0
"""The assumed duration of a call in seconds, until a call has been measured."""


class Position(NamedTuple):
    """The position of a request in the line. The lowest position is served first."""

    priority: int
    round: int
    rank: float
    number: int


@dataclass(slots=True)
class _PriorityLane:
    """The waiting requests of one priority.

    `served_s` is the progress that the most recently served key had when it was served. `had_s`
    contains the progress of each key that is waiting or ahead of the others.
    """

    served_s: float = 0.0
    had_s: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, list[QueueEntry]] = field(default_factory=dict)

    def start_s(self, key: str) -> float:
        """Return the time of a key's turn."""
        return max(self.had_s.get(key, 0.0), self.served_s)


class WaitingLine:
    """The line of waiting requests, as described in the module docstring.

    A request is in the line from `add` until `remove`. Call `charge` when it starts, and `settle`
    with its actual duration when it ends. `call_s` is the mean duration of a call in seconds.
    """

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
        """Iterate over a snapshot of the line, in order. During the iteration, requests that have
        already been returned can be removed.
        """
        for _, entry in self.positions():
            yield entry

    def positions(self) -> Iterator[tuple[Position, QueueEntry]]:
        """Yield all waiting requests with their positions, in order."""
        for priority, lane in self._lanes.items():
            keys = [self._of_key(priority, lane, key) for key in lane.waiting]
            yield from heapq.merge(*keys)

    def arrivals(self) -> Iterator[QueueEntry]:
        """Yield all waiting requests in no particular order."""
        return iter(self._entries.values())

    def find(self, number: int) -> QueueEntry | None:
        """Return the waiting request with this number, or None if there is none."""
        return self._entries.get(number)

    def before(self, entry: QueueEntry) -> Iterator[QueueEntry]:
        """Yield the requests that come before this one. If the request isn't in the line, it is
        treated as the last request of its key.
        """
        last = None if entry in self else self._last_of_key(entry)
        for position, each in self.positions():
            if each is entry or (last is not None and position > last):
                return
            yield each

    def behind(self, entry: QueueEntry) -> list[QueueEntry]:
        """Return the requests that come after this one. The request must be in the line."""
        line = list(self)
        return line[line.index(entry) + 1 :]

    def add(self, entry: QueueEntry) -> None:
        """Add a request to the line."""
        lane = self._lanes[entry.request.priority]
        insort(lane.waiting.setdefault(entry.request.key, []), entry, key=lambda each: each.order)
        self._entries[entry.number] = entry
        self.size_bytes += entry.request.size_bytes

    def remove(self, entry: QueueEntry) -> None:
        """Remove a request from the line."""
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
        """Charge a key for one turn, because its waiting request is about to start."""
        request, lane = entry.request, self._lanes[entry.request.priority]
        lane.served_s = lane.start_s(request.key)
        entry.charged_s = request.count * self.call_s
        lane.had_s[request.key] = lane.served_s + entry.charged_s

    def settle(self, entry: QueueEntry, took_s: float) -> None:
        """Record that a request has completed and that each of its calls took `took_s` seconds. Set
        `took_s` to 0 if no call was made.
        """
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
        """Return the requests that have to be denied so that the newest one fits within the limits.
        Returns None if the newest request itself has to be denied.

        The requests at the end of the line are considered first. A request is eligible if it has a
        lower priority than the newest one. It is also eligible if its key has so many earlier
        requests that its turn comes in a later round.
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
        """Return the round of a key's next request relative to the other keys' progress.

        The result is rounded. Otherwise, a key whose calls are shorter than the mean would get two
        turns in one round.
        """
        return math.floor(behind_s / self.call_s + 0.5)
