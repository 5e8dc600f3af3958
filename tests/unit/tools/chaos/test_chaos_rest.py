"""What a fleet may hold when nobody asks it for anything."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from antiphon_testkit.fake_kubernetes import FakeApi
from antiphon_tools.chaos import fleet as chaos_fleet
from antiphon_tools.chaos.fleet import MOST_DESCRIPTORS_MORE, TargetFleet
from antiphon_tools.chaos.registry import ReplicaRegistry
from antiphon_tools.launcher.plan import GATEWAY

pytestmark = pytest.mark.asyncio(loop_scope="session")


@contextmanager
def opened(pipes: int) -> Iterator[ExitStack]:
    """So many pipes, of two descriptors each, until the stack is closed."""
    with ExitStack() as stack:
        for _ in range(pipes):
            for end in os.pipe():
                stack.callback(os.close, end)
        yield stack


def fleet() -> TargetFleet:
    """A gateway, which is this process."""
    running = SimpleNamespace(processes={GATEWAY: SimpleNamespace(pid=os.getpid())})
    return TargetFleet(cast(Any, running), 1, asyncio.Queue(), ReplicaRegistry(FakeApi()))


async def test_descriptors_that_are_closed_in_time_are_no_finding() -> None:
    target = fleet()
    assert await target.at_rest() == []
    with opened(MOST_DESCRIPTORS_MORE) as stack:
        asyncio.get_running_loop().call_later(0.3, stack.close)
        assert await target.at_rest() == []


async def test_descriptors_that_stay_open_are_told_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_fleet, "REST_S", 0.3)
    target = fleet()
    assert await target.at_rest() == []
    with opened(MOST_DESCRIPTORS_MORE):
        (found,) = await target.at_rest()
    assert found.startswith(f"{GATEWAY} has ")
    assert " pipe" in found
    with opened(MOST_DESCRIPTORS_MORE // 4):
        assert await target.at_rest() == []
