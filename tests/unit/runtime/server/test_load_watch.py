"""When watchers of a stage's load are told, with bounds of milliseconds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from antiphon.runtime.server.load_watch import LoadCounts, LoadWatch

LOAD = LoadCounts(draining=False, open_sessions=0, open_segments=0, held_segments=0, refused=0)


class Stage:
    """Its load, and how often it was counted."""

    def __init__(self) -> None:
        self.load, self.counted = LOAD, 0

    def read(self) -> LoadCounts:
        self.counted += 1
        return self.load


async def test_a_watcher_is_told_at_once_and_on_change() -> None:
    stage = Stage()
    watch = LoadWatch(stage.read, shortest_s=0.001, longest_s=3600, idle_longest_s=3600)
    loads = watch.follow()
    assert await anext(loads) == LOAD
    stage.load = replace(LOAD, open_segments=1)
    watch.touch()
    assert await anext(loads) == stage.load
    await loads.aclose()


@pytest.mark.parametrize(
    ("sessions", "longest_s", "idle_longest_s"),
    [(1, 0.01, 3600), (0, 3600, 0.01)],
    ids=["with a session", "idle"],
)
async def test_a_watcher_hears_the_same_again_when_nothing_changes(
    sessions: int, longest_s: float, idle_longest_s: float
) -> None:
    stage = Stage()
    stage.load = replace(LOAD, open_sessions=sessions)
    watch = LoadWatch(
        stage.read, shortest_s=0.001, longest_s=longest_s, idle_longest_s=idle_longest_s
    )
    loads = watch.follow()
    assert [await anext(loads) for _ in range(3)] == [stage.load] * 3
    await loads.aclose()


async def test_facts_that_change_nothing_are_not_told() -> None:
    stage = Stage()
    watch = LoadWatch(stage.read, shortest_s=0.001, longest_s=3600, idle_longest_s=3600)
    loads = watch.follow()
    await anext(loads)
    nothing = asyncio.ensure_future(anext(loads))
    while stage.counted < 3:
        watch.touch()
        await asyncio.sleep(0)
    assert not nothing.done()
    stage.load = replace(LOAD, refused=1)
    watch.touch()
    assert await nothing == stage.load
    await loads.aclose()


async def test_counting_costs_nothing_between_reports() -> None:
    stage = Stage()
    watch = LoadWatch(stage.read, shortest_s=3600, longest_s=7200, idle_longest_s=7200)
    loads = watch.follow()
    await anext(loads)
    waiting = asyncio.ensure_future(anext(loads, None))
    await asyncio.sleep(0)
    for _ in range(1000):
        watch.touch()
        await asyncio.sleep(0)
    assert stage.counted == 1
    watch.close()
    assert await waiting is None
