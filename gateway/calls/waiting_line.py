"""Those who wait, in the order in which they may begin. Pure.

- One of a higher priority is before all of a lower one.
- Keys of one priority take turns, in rounds: the requests of a key are in successive rounds, by
  their rank, and those of one round are in the order of theirs. So however many one key sends,
  another one waits for one turn of it. A key that begins to wait joins the round that is being
  served: it neither waits for what others have piled up, nor gets what it did not ask for before.
- A round lasts for as long as a call takes on average, and a key has come as far as its calls took:
  keys with long calls have fewer turns. What a call took more or less than the average counts when
  it is over, but a turn costs half of it at least: while calls become shorter, none has many.
- Where nobody of a priority waits, nothing is remembered of it.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.calls.priority import Priority
from gateway.calls.wish import Ticket

MOST_OWED = 64
"""Rounds that a key may have to let pass for the calls that it had."""
UNKNOWN_S = 1.0
"""A call's time before any has been measured."""


class Position(NamedTuple):
    """Where a request is in the line; the lower, the earlier."""

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
    waiting: dict[str, list[Ticket]] = field(default_factory=dict)

    def start_s(self, key: str) -> float:
        """When it is a key's turn."""
        return max(self.had_s.get(key, 0.0), self.served_s)


class WaitingLine:
    """See the head of this file. A request that is added waits until it is removed; `charge` it
    when it begins, and `settle` what it took. `call_s` is what a call takes on average."""

    def __init__(self) -> None:
        self._lanes = {priority: _PriorityLane() for priority in Priority}
        self._tickets: dict[int, Ticket] = {}
        self.size_bytes = 0
        self.call_s = UNKNOWN_S

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket.number in self._tickets

    def __iter__(self) -> Iterator[Ticket]:
        """In order, as it was at the beginning; those at hand may be removed meanwhile."""
        for _, ticket in self.positions():
            yield ticket

    def positions(self) -> Iterator[tuple[Position, Ticket]]:
        """All who wait and where, in order."""
        for priority, lane in self._lanes.items():
            keys = [self._of_key(priority, lane, key) for key in lane.waiting]
            yield from heapq.merge(*keys)

    def arrivals(self) -> Iterator[Ticket]:
        """All who wait, in no order."""
        return iter(self._tickets.values())

    def find(self, number: int) -> Ticket | None:
        """The one with that number, if it waits."""
        return self._tickets.get(number)

    def before(self, ticket: Ticket) -> Iterator[Ticket]:
        """Those who may begin before one that waits, or would come as the last of its key."""
        last = None if ticket in self else self._last_of_key(ticket)
        for position, each in self.positions():
            if each is ticket or (last is not None and position > last):
                return
            yield each

    def behind(self, ticket: Ticket) -> list[Ticket]:
        """Those who may begin only after one that waits."""
        line = list(self)
        return line[line.index(ticket) + 1 :]

    def add(self, ticket: Ticket) -> None:
        """Let it wait."""
        lane = self._lanes[ticket.wish.priority]
        insort(lane.waiting.setdefault(ticket.wish.key, []), ticket, key=lambda each: each.order)
        self._tickets[ticket.number] = ticket
        self.size_bytes += ticket.wish.size_bytes

    def remove(self, ticket: Ticket) -> None:
        """It waits no more."""
        wish, lane = ticket.wish, self._lanes[ticket.wish.priority]
        of_key = lane.waiting[wish.key]
        of_key.remove(ticket)
        del self._tickets[ticket.number]
        self.size_bytes -= wish.size_bytes
        if not of_key:
            del lane.waiting[wish.key]
            if not lane.waiting:
                lane.served_s = 0.0
                lane.had_s.clear()

    def charge(self, ticket: Ticket) -> None:
        """It waits and is about to begin: the turn of its key."""
        wish, lane = ticket.wish, self._lanes[ticket.wish.priority]
        lane.served_s = lane.start_s(wish.key)
        ticket.charged_s = wish.count * self.call_s
        lane.had_s[wish.key] = lane.served_s + ticket.charged_s

    def settle(self, ticket: Ticket, took_s: float) -> None:
        """It is over, and each of its calls has taken so long; 0: it was none."""
        wish, lane = ticket.wish, self._lanes[ticket.wish.priority]
        cost_s = max(wish.count * took_s, ticket.charged_s / 2) if took_s else 0.0
        more_s, ticket.charged_s = cost_s - ticket.charged_s, 0.0
        if lane.waiting:
            had_s = min(lane.start_s(wish.key) + more_s, lane.served_s + MOST_OWED * self.call_s)
            lane.had_s[wish.key] = had_s
            if had_s <= lane.served_s:
                del lane.had_s[wish.key]

    def crowding(self, newcomer: Ticket, *, most: int, most_bytes: int) -> list[Ticket] | None:
        """Who must go for one that has come last to fit among `most`; None: that one must.

        From the end of the line, whoever has a lower priority, or is of a key with so many before
        it that its turn is in a later round than the newcomer's.
        """
        count, size_bytes, gone = len(self), self.size_bytes, list[Ticket]()
        line = list(self.positions())
        own = next(position for position, each in line if each is newcomer)
        while count > most or size_bytes > most_bytes:
            position, last = line.pop()
            is_same_key = last.wish.key == newcomer.wish.key and position.priority == own.priority
            if is_same_key or position[:2] <= own[:2]:
                return None
            gone.append(last)
            count, size_bytes = count - 1, size_bytes - last.wish.size_bytes
        return gone

    def _of_key(
        self, priority: Priority, lane: _PriorityLane, key: str
    ) -> Iterator[tuple[Position, Ticket]]:
        start_s = lane.start_s(key)
        for ticket in tuple(lane.waiting[key]):
            turn = self._round(start_s - lane.served_s)
            yield Position(priority.place, turn, ticket.rank, ticket.number), ticket
            start_s += ticket.wish.count * self.call_s

    def _last_of_key(self, ticket: Ticket) -> Position:
        wish, lane = ticket.wish, self._lanes[ticket.wish.priority]
        waiting = sum(each.wish.count for each in lane.waiting.get(wish.key, ()))
        behind_s = lane.start_s(wish.key) - lane.served_s + waiting * self.call_s
        return Position(wish.priority.place, self._round(behind_s), math.inf, 0)

    def _round(self, behind_s: float) -> int:
        """The round of who is to be served when the others have had so much more. Rounded, so that
        nobody has two turns in one whose calls take less than the average."""
        return math.floor(behind_s / self.call_s + 0.5)
