"""What gateways tell each other of the slots that they want: each is counted once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from tests.contract.scaler_site import SPOKEN, Other, Site, meet

GENEROUS_S = 3600.0
LONG_S = 60.0


async def test_what_a_gateway_wanted_is_forgotten_when_it_leaves_and_known_when_it_is_back() -> (
    None
):
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(Site())
        async with Site() as other:
            meet(one, other)
            other.asks(SPOKEN)
            other.asks(SPOKEN)
            await one.until_demand("talker", 1)
            address = other.address
        await one.until_demand("talker", 0)
        async with Site(address) as again:
            again.asks(SPOKEN)
            again.asks(SPOKEN)
            again.asks(SPOKEN)
            await one.until_demand("talker", 2)
            one.found.tell(one.address)
            await one.until_demand("talker", 0)


async def test_gateways_are_found_after_a_failure_to_find_them() -> None:
    async with asyncio.timeout(120), Site() as one, Site() as other:
        one.found.fail()
        meet(one, other)
        other.asks(SPOKEN)
        other.asks(SPOKEN)
        await one.until_demand("talker", 1)


async def test_a_gateway_that_says_nothing_more_is_not_counted_and_asked_again() -> None:
    async with Other("silent") as silent, Site(scaler_silence_s=0.2) as one:
        one.found.tell(silent.addresses[0])
        await one.until_demand("talker", 7)
        await one.until_demand("talker", 0)
        await silent.asked.acquire()
        await silent.asked.acquire()


async def test_a_gateway_counts_until_it_is_found_at_neither_of_its_addresses() -> None:
    async with Other("other") as other, Site(scaler_silence_s=GENEROUS_S) as one:
        for found in (other.addresses, other.addresses[1:], other.addresses[:1]):
            one.found.tell(*found)
            await one.until_told_by(*found)
            assert one.scaler.demand("talker") == 7
        one.found.tell()
        await one.until_demand("talker", 0)


async def test_gateways_at_one_address_each_are_all_counted() -> None:
    async with Other("a") as a, Other("b") as b, Site(scaler_silence_s=GENEROUS_S) as one:
        one.found.tell(a.addresses[0], b.addresses[0])
        await one.until_told_by(a.addresses[0], b.addresses[0])
        assert one.scaler.demand("talker") == 14


async def test_a_gateway_that_finds_itself_leaves_and_counts_itself_once() -> None:
    async with Site(scaler_silence_s=GENEROUS_S) as one, Other(one.scaler.boot_id) as itself:
        for _ in range(3):
            one.asks(SPOKEN)
        await one.until_demand("talker", 2)
        one.found.tell(*itself.addresses)
        async with asyncio.timeout(LONG_S):
            for _ in itself.addresses:
                await itself.left.acquire()
        assert not one.scaler.peers.told_by
        assert one.scaler.demand("talker") == 2


async def test_a_gateway_whose_conditions_change_is_followed_on() -> None:
    async with Other("a") as a, Other("b") as b, Site(scaler_silence_s=GENEROUS_S) as one:
        address = a.addresses[0]
        one.found.tell_endpoints(Endpoint("gateway", "a", address, ready=False))
        await one.until_demand("talker", 7)
        one.found.tell_endpoints(
            Endpoint("gateway", "a", address, node="n"), Endpoint("gateway", "b", b.addresses[0])
        )
        await one.until_demand("talker", 14)
        await a.asked.acquire()
        assert a.asked.locked(), "its stream goes on"
        assert a.left.locked()
