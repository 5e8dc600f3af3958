"""Chooses the replica for a session by the power of two choices, with a preference for replicas
that are close by. This module performs no I/O.

Two candidates are drawn at random, and the one with the lower load is chosen. If some candidates
are close to the session's other stages, one of the two is drawn from among these. It is then chosen
unless its load is higher by more than `CLOSE`. The time this takes doesn't depend on the number of
replicas.
"""

from __future__ import annotations

import enum
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

CLOSE = 0.15
"""Two loads are considered equal if they differ by no more than this fraction of the slots."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a replica is located. Parts that aren't known are empty.

    Processes on the same host can use shared memory, if it is enabled. The network path is shortest
    within a pod or node, and traffic is cheapest within a zone.
    """

    host: str = ""
    pod: str = ""
    node: str = ""
    zone: str = ""

    @property
    def places(self) -> tuple[tuple[int, str], ...]:
        """The places that contain the replica, with the narrowest first. The rank of a place is the
        nearness of two replicas that share it.
        """
        named = ((4, self.host), (3, self.pod), (2, self.node), (1, self.zone))
        return tuple(place for place in named if place[1])


def nearness(location: Location, others: Iterable[Location]) -> int:
    """Return how near a location is to the closest of the other locations. Returns 0 if they have
    no known place in common.
    """
    places = set(location.places)
    shared = (place[0] for each in others for place in each.places if place in places)
    return max(shared, default=0)


Key = TypeVar("Key", bound=Hashable)


class PickReason(enum.StrEnum):
    """Why a replica was chosen.

    With `only`, there was no alternative. With `load`, the replica had a lower load. With `near`,
    it was close to the session's other stages. With `sticky`, it served the session's previous
    turn. With `detour`, another replica of the stage had refused the session.
    """

    ONLY = "only"
    LOAD = "load"
    NEAR = "near"
    STICKY = "sticky"
    DETOUR = "detour"


class Pick(NamedTuple, Generic[Key]):
    """A chosen replica and the reason for choosing it."""

    key: Key
    reason: PickReason


class IndexedSet(Generic[Key]):
    """A set with numbered members, so that one of them can be drawn at random. All operations take
    constant time.
    """

    def __init__(self) -> None:
        self._members: list[Key] = []
        self._numbers: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, number: int) -> Key:
        return self._members[number]

    def add(self, member: Key) -> None:
        """Add a member if it is not in the set yet."""
        if member not in self._numbers:
            self._numbers[member] = len(self._members)
            self._members.append(member)

    def discard(self, member: Key) -> None:
        """Remove a member. Its number is taken over by the member with the highest number."""
        number = self._numbers.pop(member, None)
        if number is None:
            return
        last = self._members.pop()
        if last != member:
            self._members[number] = last
            self._numbers[last] = number


class Pool(Generic[Key]):
    """The replicas of one role and build that are available for sessions.

    `load` returns the fraction of a replica's slots that is currently in use.
    """

    def __init__(self, load: Callable[[Key], float]) -> None:
        self._load = load
        self._all: IndexedSet[Key] = IndexedSet()
        self._locations: dict[Key, Location] = {}
        self._slots: dict[Key, int] = {}
        self._by_place: defaultdict[tuple[int, str], IndexedSet[Key]] = defaultdict(IndexedSet)
        self.slots = 0
        self._untold = 0

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, key: Key) -> bool:
        return key in self._locations

    @property
    def unbounded(self) -> bool:
        """Whether there is a replica that does not report its slots."""
        return self._untold > 0

    def first(self) -> Key:
        """Return a replica. It is always the same one until that replica is removed. The pool must
        not be empty.
        """
        return self._all[0]

    def add(self, key: Key, location: Location, slots: int) -> None:
        """Add a replica. If it doesn't report its slots, `slots` is 0."""
        self.discard(key)
        self._all.add(key)
        self._locations[key], self._slots[key] = location, slots
        self.slots += slots
        self._untold += not slots
        for place in location.places:
            self._by_place[place].add(key)

    def discard(self, key: Key) -> None:
        """Remove a replica, if it is in the pool."""
        location = self._locations.pop(key, None)
        if location is None:
            return
        self._all.discard(key)
        slots = self._slots.pop(key)
        self.slots -= slots
        self._untold -= not slots
        for place in location.places:
            self._by_place[place].discard(key)
            if not self._by_place[place]:
                del self._by_place[place]

    def has_besides(self, avoided: Collection[Key]) -> bool:
        """Return whether the pool contains a replica that isn't in `avoided`."""
        return len(self) > len(avoided) or len(self) > sum(each in self for each in avoided)

    def pick(
        self,
        generator: random.Random,
        near: Sequence[Location] = (),
        avoided: Collection[Key] = (),
    ) -> Pick[Key] | None:
        """Choose a replica for a session whose other stages are located at `near`. Returns None if
        there are no candidates.
        """
        if len(self._all) == 1:
            only = self._all[0]
            return None if only in avoided else Pick(only, PickReason.ONLY)
        second = _draw(self._all, generator, avoided)
        if second is None:
            return None
        first = self._nearest(generator, near, avoided) or second
        if first == second:
            first = _draw(self._all, generator, {*avoided, second}) or second
        if first == second:
            return Pick(second, PickReason.ONLY)
        return self._better(first, second, near)

    def _nearest(
        self, generator: random.Random, near: Sequence[Location], avoided: Collection[Key]
    ) -> Key | None:
        """Return a random replica from those that share the narrowest possible place with the other
        stages.
        """
        wanted = sorted({place for each in near for place in each.places}, reverse=True)
        for place in wanted:
            if place in self._by_place:
                found = _draw(self._by_place[place], generator, avoided)
                if found is not None:
                    return found
        return None

    def _better(self, first: Key, second: Key, near: Sequence[Location]) -> Pick[Key]:
        gain = nearness(self._locations[first], near) - nearness(self._locations[second], near)
        excess = self._load(first) - self._load(second)
        if gain > 0 and excess <= CLOSE:
            return Pick(first, PickReason.NEAR)
        if gain < 0 and -excess <= CLOSE:
            return Pick(second, PickReason.NEAR)
        return Pick(first if excess <= 0 else second, PickReason.LOAD)


def _draw(
    members: IndexedSet[Key], generator: random.Random, avoided: Collection[Key]
) -> Key | None:
    """Return a random member. If that member is in `avoided`, return the member with the next
    number that isn't. Returns None if all members are in `avoided`.
    """
    count = len(members)
    start = int(generator.random() * count)
    for offset in range(min(count, len(avoided) + 1)):
        member = members[(start + offset) % count]
        if member not in avoided:
            return member
    return None
