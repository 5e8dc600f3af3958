"""What becomes of many replicas at once, turn by turn of the event loop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from dataclasses import replace

import pytest

from antiphon.deployment.schema import GatewayConfig
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.replicated_stage import AT_ONCE, ReplicatedStage
from tests.closed_replicas import note_closed

MANY = [
    Endpoint("talker", f"uid-{number}", f"127.0.0.1:{number + 1}") for number in range(3 * AT_ONCE)
]


async def test_channels_of_many_new_replicas_are_made_a_few_in_a_turn() -> None:
    stage = ReplicatedStage("talker", GatewayConfig(), lambda _: None)
    stage.keep(MANY)
    made = [0]
    while made[-1] < len(MANY):
        await asyncio.sleep(0)
        made.append(sum("channel" in vars(replica) for replica in stage))
    assert all(now - before <= AT_ONCE for before, now in itertools.pairwise(made))
    await stage.close()


async def test_many_changes_at_once_are_one_change() -> None:
    told: list[int] = []
    stage = ReplicatedStage("talker", GatewayConfig(), lambda _: told.append(len(stage)))
    stage.keep(MANY)
    stage.keep([replace(each, terminating=True) for each in MANY])
    stage.keep(MANY[:2])
    assert told == [len(MANY), len(MANY), 2]
    assert stage.drains == len(MANY)
    await stage.close()


async def test_replicas_that_leave_before_their_turn_are_gone_when_the_stage_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = note_closed(monkeypatch)
    stage = ReplicatedStage("talker", GatewayConfig(), lambda _: None)
    stage.keep(MANY)
    left = [weakref.ref(each) for each in stage]
    stage.keep([])
    for _ in MANY:
        await closed.get()
    gc.collect()
    assert not any(each() for each in left)
    assert not stage.states.total()
    await stage.close()
