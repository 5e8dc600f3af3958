"""The endpoints that a deployment's addresses are."""

from __future__ import annotations

import asyncio

import pytest

from antiphon_gateway.fleet.discovery.replica_endpoint import Discovery, Endpoint
from antiphon_gateway.fleet.discovery.static import StaticAddresses


async def test_static_discovery_tells_every_address_once_and_then_nothing() -> None:
    discovery: Discovery = StaticAddresses(
        {"talker": ["10.0.0.1:50051", "[fd00::2]:50051"], "code2wav": ("10.0.0.1:50051",)}
    )
    assert discovery.last_sync is None
    told = discovery.watch()
    assert await anext(told) == {
        Endpoint("talker", "10.0.0.1:50051", "10.0.0.1:50051"),
        Endpoint("talker", "[fd00::2]:50051", "[fd00::2]:50051"),
        Endpoint("code2wav", "10.0.0.1:50051", "10.0.0.1:50051"),
    }
    assert discovery.last_sync is not None
    more = asyncio.ensure_future(anext(told))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not more.done()
    more.cancel()
    with pytest.raises(asyncio.CancelledError):
        await more


async def test_static_discovery_tells_an_empty_set_when_there_are_no_addresses() -> None:
    assert await anext(StaticAddresses({"talker": []}).watch()) == frozenset()
