"""Choose the replica of a session: power of two choices, with a preference for proximity. Pure.

The less loaded of two random candidates is chosen. If some candidates are close to the stages that
the session already has, one of the two is drawn from these, and is chosen unless its load is higher
by `CLOSE`. The time does not depend on the number of replicas.
"""

from __future__ import annotations

import enum
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

CLOSE = 0.15
"""Loads, in shares of the slots, that differ by less are about the same."""


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a replica, as far as it is known.

    Processes of one host share memory, if allowed. Processes of a pod or a node have the shortest
    path, and those of a zone the cheapest.
    """

    host: str = ""
    pod: str = ""
    node: str = ""
    zone: str = ""

    @property
    def places(self) -> tuple[tuple[int, str], ...]:
        """What it is in, the narrowest first; the rank is the nearness of two that share it."""
        named = ((4, self.host), (3, self.pod), (2, self.node), (1, self.zone))
        return tuple(place for place in named if place[1])


def nearness(location: Location, others: Iterable[Location]) -> int:
    """Of a place to the nearest of others; 0: nothing is known to be shared."""
    places = set(location.places)
    shared = (place[0] for each in others for place in each.places if place in places)
    return max(shared, default=0)


Key = TypeVar("Key", bound=Hashable)


class PickReason(enum.StrEnum):
    """Why a session got the replica that it has: there was `only` that one; it was less loaded
    (`load`), or near the session's other stages; it had the session's last turn (`sticky`), or
    another one of its stage has refused it (`detour`)."""

    ONLY = "only"
    LOAD = "load"
    NEAR = "near"
    STICKY = "sticky"
    DETOUR = "detour"


class Pick(NamedTuple, Generic[Key]):
    """A replica, and why it."""

    key: Key
    reason: PickReason


class IndexedSet(Generic[Key]):
    """A set with members by number, so that one can be drawn; all in constant time."""

    def __init__(self) -> None:
        self._members: list[Key] = []
        self._numbers: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, number: int) -> Key:
        return self._members[number]

    def add(self, member: Key) -> None:
        """Take a member in; it may be one already."""
        if member not in self._numbers:
            self._numbers[member] = len(self._members)
            self._members.append(member)

    def discard(self, member: Key) -> None:
        """Leave a member out; the last one gets its number."""
        number = self._numbers.pop(member, None)
        if number is None:
            return
        last = self._members.pop()
        if last != member:
            self._members[number] = last
            self._numbers[last] = number


class Pool(Generic[Key]):
    """The replicas of one role and checkpoint that may get a session.

    `load` returns the used share of a replica's slots at the time of the choice.
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
        """Whether a replica does not report its slots."""
        return self._untold > 0

    def first(self) -> Key:
        """One of them, the same until it leaves. There must be one."""
        return self._all[0]

    def add(self, key: Key, location: Location, slots: int) -> None:
        """Add a replica; `slots` is 0 if it does not report its slots."""
        self.discard(key)
        self._all.add(key)
        self._locations[key], self._slots[key] = location, slots
        self.slots += slots
        self._untold += not slots
        for place in location.places:
            self._by_place[place].add(key)

    def discard(self, key: Key) -> None:
        """It may not, from now on."""
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
        """Whether there is one that is not to be avoided."""
        return len(self) > len(avoided) or len(self) > sum(each in self for each in avoided)

    def pick(
        self,
        generator: random.Random,
        near: Sequence[Location] = (),
        avoided: Collection[Key] = (),
    ) -> Pick[Key] | None:
        """A replica for a session whose other stages are at `near`; None if there is none."""
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
        """A random one of those that share the narrowest place with others."""
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
    """A random member, the next by number if that is to be avoided; None if all are."""
    count = len(members)
    start = int(generator.random() * count)
    for offset in range(min(count, len(avoided) + 1)):
        member = members[(start + offset) % count]
        if member not in avoided:
            return member
    return None
