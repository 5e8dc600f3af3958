"""Which replica gets a session: thousands of picks by a generator with a seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from antiphon_gateway.fleet.picker import CLOSE, IndexedSet, Location, PickReason, Pool, nearness


def pool_of(
    loads: Mapping[str, float], locations: Mapping[str, Location] | None = None
) -> Pool[str]:
    pool = Pool[str](loads.__getitem__)
    for name in loads:
        pool.add(name, (locations or {}).get(name, Location()), 4)
    return pool


def picks(pool: Pool[str], count: int = 4000, **how: object) -> Counter[str | None]:
    generator = random.Random(1)
    picked = [pool.pick(generator, **how) for _ in range(count)]  # type: ignore[arg-type]
    return Counter(each and each.key for each in picked)


def reasons(pool: Pool[str], count: int = 500, **how: object) -> set[PickReason | None]:
    generator = random.Random(1)
    picked = [pool.pick(generator, **how) for _ in range(count)]  # type: ignore[arg-type]
    return {each and each.reason for each in picked}


def test_replicas_of_equal_load_get_equal_shares() -> None:
    names = [f"r{number}" for number in range(8)]
    counts = picks(pool_of(dict.fromkeys(names, 0.5)), 8000)
    assert set(counts) == set(names)
    assert all(800 < counts[name] < 1200 for name in names)


def test_the_most_loaded_of_many_gets_nothing() -> None:
    counts = picks(pool_of({"a": 0.5, "b": 0.5, "c": 0.5, "full": 1.0}))
    assert counts["full"] == 0


def test_sessions_spread_by_two_choices_much_more_evenly_than_at_random() -> None:
    """The fullest of 100 replicas with 1000 sessions has about the mean; at random twice it."""
    held: Counter[str] = Counter()
    names = [f"r{number}" for number in range(100)]
    pool = Pool[str](lambda name: held[name] / 16)
    for name in names:
        pool.add(name, Location(), 16)
    generator = random.Random(2)
    for _ in range(1000):
        picked = pool.pick(generator)
        assert picked is not None
        held[picked.key] += 1
    assert max(held.values()) <= 13


HERE = Location(host="h1", pod="p1", node="n1", zone="z1")


@pytest.mark.parametrize(
    ("location", "rank"),
    [
        (HERE, 4),
        (Location(pod="p1", node="n1", zone="z1"), 3),
        (Location(host="h2", pod="p2", node="n1", zone="z1"), 2),
        (Location(host="h2", pod="p2", node="n2", zone="z1"), 1),
        (Location(host="z1", pod="h1", node="p1", zone="n1"), 0),
        (Location(), 0),
    ],
)
def test_the_narrowest_place_that_is_shared_counts(location: Location, rank: int) -> None:
    assert nearness(location, [Location(), HERE]) == rank


FAR = Location(host="h9", pod="p9", node="n9", zone="z1")
SAME_NODE = Location(host="h2", pod="p2", node="n1", zone="z1")


@pytest.mark.parametrize(
    ("excess", "taken"), [(0.0, True), (CLOSE * 0.9, True), (CLOSE * 1.1, False)]
)
def test_one_near_among_a_thousand_is_taken_while_it_is_about_as_loaded(
    excess: float, taken: bool
) -> None:
    names = [f"r{number}" for number in range(999)]
    loads = {**dict.fromkeys(names, 0.5), "near": 0.5 + excess}
    pool = pool_of(loads, {**dict.fromkeys(names, FAR), "near": SAME_NODE})
    counts = picks(pool, 200, near=[HERE])
    assert (counts["near"] == 200) is taken
    assert taken or not counts["near"]


def test_of_several_near_ones_the_nearest_is_taken() -> None:
    places = {"zone": FAR, "node": SAME_NODE, "host": HERE}
    assert picks(pool_of(dict.fromkeys(places, 0.0), places), 100, near=[HERE]) == {"host": 100}


def test_those_to_be_avoided_are_not_picked() -> None:
    pool = pool_of(dict.fromkeys("abc", 0.0), {"a": HERE})
    assert set(picks(pool, 100, avoided={"a", "b"}, near=[HERE])) == {"c"}
    assert pool.has_besides({"a", "b", "elsewhere"})
    assert not pool.has_besides({"a", "b", "c"})
    assert set(picks(pool, 10, avoided={"a", "b", "c"})) == {None}


def test_an_empty_pool_has_nothing() -> None:
    pool = pool_of({})
    assert pool.pick(random.Random(1)) is None
    assert not pool.has_besides(())


def test_the_slots_are_those_of_all_and_unbounded_where_one_does_not_tell() -> None:
    pool = pool_of({"a": 0.0, "b": 0.0})
    assert (pool.slots, pool.unbounded) == (8, False)
    pool.add("a", Location(), 0)
    assert (pool.slots, pool.unbounded) == (4, True)
    pool.discard("a")
    assert (pool.slots, pool.unbounded, len(pool)) == (4, False, 1)


def test_a_pool_is_as_if_made_anew_after_any_changes() -> None:
    generator = random.Random(3)
    names = [f"r{number}" for number in range(12)]
    locations = {name: Location(node=f"n{index % 3}") for index, name in enumerate(names)}
    pool, there = Pool[str](lambda _: 0.0), set[str]()
    for _ in range(2000):
        name = generator.choice(names)
        if generator.random() < 0.5:
            pool.add(name, locations[name], 2)
            there.add(name)
        else:
            pool.discard(name)
            there.discard(name)
        assert (len(pool), pool.slots) == (len(there), 2 * len(there))
        near = [Location(node="n1")]
        pick = pool.pick(generator, near)
        picked = pick and pick.key
        assert (picked in there) if there else picked is None
        nodes = {locations[each].node for each in there}
        assert "n1" not in nodes or (picked is not None and locations[picked].node == "n1")


def test_an_indexed_set_keeps_all_but_who_left() -> None:
    members: IndexedSet[int] = IndexedSet()
    for number in range(10):
        members.add(number)
        members.add(number)
    for number in (9, 0, 4, 4):
        members.discard(number)
    assert sorted(members[index] for index in range(len(members))) == [1, 2, 3, 5, 6, 7, 8]


def test_a_pick_says_what_decided_it() -> None:
    alone = pool_of({"a": 0.5})
    assert reasons(alone) == {PickReason.ONLY}
    even = pool_of({"a": 0.5, "b": 0.5})
    assert reasons(even) == {PickReason.LOAD}
    assert reasons(even, avoided={"a"}) == {PickReason.ONLY}
    places = {"here": HERE, "far": FAR}
    assert reasons(pool_of(dict.fromkeys(places, 0.5), places), near=[HERE]) == {PickReason.NEAR}
    loaded = {"here": 0.5 + CLOSE * 1.1, "far": 0.5}
    assert reasons(pool_of(loaded, places), near=[HERE]) == {PickReason.LOAD}
    assert reasons(pool_of({})) == {None}
