"""What follows from the fleet is derived once, until the fleet changes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.errors import Unavailable
from antiphon.v1 import stage_pb2
from antiphon_gateway.fleet import fleet as fleet_module
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.lineup import Lineup
from antiphon_gateway.fleet.replica import Replica

TEXT = frozenset({"text"})
REPLICAS = 4


def description(voice: str, build: str = "") -> stage_pb2.DescribeResponse:
    edges = [
        stage_pb2.PipelineEdge(name="input", consumer="thinker"),
        stage_pb2.PipelineEdge(name="text", producer="thinker"),
    ]
    return stage_pb2.DescribeResponse(
        role="thinker",
        pipeline="toy",
        checkpoint_fingerprint=build,
        voices=[voice],
        slots=1,
        pipeline_edges=edges,
    )


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    addresses = tuple(f"127.0.0.1:{port}" for port in range(1, REPLICAS + 1))
    made = Fleet(Deployment(stages={"thinker": StageConfig(addresses=addresses)}))
    async for endpoints in made.discovery.watch():
        made["thinker"].keep(endpoints)
        break
    yield made
    await made["thinker"].close()


def rise(fleet: Fleet, count: int = 1) -> list[Replica]:
    risen = list(fleet["thinker"])[:count]
    for replica in risen:
        replica.rise(description("one"))
    return risen


async def test_sessions_on_the_same_replicas_share_a_line_up(fleet: Fleet) -> None:
    rise(fleet)
    assert fleet.assign(TEXT)[0] is fleet.assign(TEXT)[0]
    assert fleet.line_up(TEXT) is fleet.line_up(TEXT)
    assert fleet.accepted() is fleet.accepted()
    assert fleet.accepted().of_session(fleet.line_up(TEXT)) is fleet.accepted()


async def test_what_was_derived_is_forgotten_when_a_replica_describes_itself_anew(
    fleet: Fleet,
) -> None:
    (replica,) = rise(fleet)
    assert fleet.line_up(TEXT).voices == fleet.assign(TEXT)[0].voices == fleet.voices() == ("one",)
    before = fleet.accepted()
    replica.rise(description("two"))
    assert fleet.line_up(TEXT).voices == fleet.assign(TEXT)[0].voices == fleet.voices() == ("two",)
    assert fleet.accepted() is not before


async def test_reports_of_load_leave_what_was_derived(fleet: Fleet) -> None:
    (replica,) = rise(fleet)
    derived = fleet.line_up(TEXT), fleet.assign(TEXT)[0], fleet.accepted(), fleet.descriptions
    told = fleet.changes.next
    for segments in (1, 0):
        replica.take_load(stage_pb2.StageLoad(open_segments=segments, slots=1))
    assert told.is_set(), "who waits for a slot is woken"
    replica.rise(description("one"))
    same = fleet.line_up(TEXT), fleet.assign(TEXT)[0], fleet.accepted(), fleet.descriptions
    assert all(one is other for one, other in zip(derived, same, strict=True))


async def test_what_was_derived_is_forgotten_when_a_replica_gets_no_more_sessions(
    fleet: Fleet,
) -> None:
    one, other = rise(fleet, 2)
    assert fleet.line_up(TEXT).members[0].address in (one.address, other.address)
    one.take_load(stage_pb2.StageLoad(draining=True))
    assert fleet.line_up(TEXT).members[0].address == other.address
    other.fall("it died")
    with pytest.raises(Unavailable):
        fleet.line_up(TEXT)


async def test_a_session_is_read_by_the_rules_of_its_own_build(fleet: Fleet) -> None:
    (_, new) = rise(fleet, 2)
    new.rise(description("two", build="new"))
    seen = set()
    for _ in range(40):
        lineup, assignment = fleet.assign(TEXT)
        told = fleet.accepted().of_session(lineup).told["thinker"]
        assert told is assignment["thinker"].description
        seen.add(told.checkpoint_fingerprint)
    assert seen == {"", "new"}


async def test_no_line_up_is_left_when_the_last_replica_is_down(fleet: Fleet) -> None:
    (replica,) = rise(fleet)
    fleet.line_up(TEXT)
    replica.fall("it broke")
    with pytest.raises(Unavailable, match="it broke"):
        fleet.line_up(TEXT)
    with pytest.raises(Unavailable, match="it broke"):
        fleet.assign(TEXT)


async def test_line_ups_of_many_replicas_are_bounded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "MAX_LINEUPS", 2)
    replicas = rise(fleet, REPLICAS)
    used, made = set(), list[weakref.ref[Lineup]]()
    for number in range(50):
        lineup, assignment = fleet.assign(TEXT)
        assert lineup.members[0].address == assignment["thinker"].address
        used.add(assignment["thinker"])
        made.append(weakref.ref(lineup))
        if number % 10 != 9:
            continue
        gc.collect()
        assert len({id(kept) for each in made if (kept := each()) is not None}) <= 2
    assert used == set(replicas)
