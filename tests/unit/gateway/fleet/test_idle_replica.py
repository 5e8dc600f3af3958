"""When a replica is idle, so that the gateway expects its reports less often."""

from __future__ import annotations

import pytest

from antiphon.v1 import stage_pb2
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.replica import Replica
from antiphon_testkit.gateway_settings import gateway_config


@pytest.mark.parametrize(
    ("sessions", "began", "idle"),
    [
        (None, False, False),
        (0, False, True),
        (1, False, False),
        (0, True, False),
    ],
    ids=["reports nothing", "idle", "has a session", "is about to have one"],
)
async def test_replica_is_idle_when_neither_it_nor_this_gateway_knows_of_a_session(
    sessions: int | None, *, began: bool, idle: bool
) -> None:
    endpoint = Endpoint(role="talker", uid="a", address="127.0.0.1:1")
    replica = Replica(endpoint, gateway_config(), lambda _: None)
    if sessions is not None:
        # A session may be open without a segment that takes a slot.
        replica.take_load(stage_pb2.StageLoad(open_sessions=sessions))
    if began:
        replica.segment_began()
    assert replica.idle is idle
