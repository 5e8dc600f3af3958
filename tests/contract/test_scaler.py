from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, aclosing

import grpc
import pytest
from fake_stages import TALKER
from gateway_door import Door, open_door
from keda_client import KedaClient
from replicated_stages import open_replicas

from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.errors import ResourceExhausted
from antiphon.transport.channel import SERVER_OPTIONS
from antiphon.v1 import demand_pb2, demand_pb2_grpc
from gateway.calls.admission import Wish
from gateway.calls.place import Admission
from gateway.changes import ChangeSignal
from gateway.fleet.discovery.endpoint import Endpoint
from gateway.fleet.fleet import Fleet
from gateway.metrics import Metrics
from gateway.scaler.demand import Capacity
from gateway.scaler.deployed import scaler_of
from gateway.scaler.scaler import Scaler

SLOTS = {"thinker": 8, "talker": 4}
HERE = {"thinker": 1, "talker": 4}
"""Slots that a gateway has for its requests: the first one has the only thinker."""
SPOKEN = Wish(frozenset(SLOTS))
WRITTEN = Wish(frozenset({"thinker"}))


class Told:
    """A discovery that says what the test says."""

    def __init__(self) -> None:
        self._sets: asyncio.Queue[frozenset[Endpoint] | Exception] = asyncio.Queue()
        self.last_sync: float | None = None

    def tell(self, *addresses: str) -> None:
        places = (Endpoint(role="gateway", uid=each, address=each) for each in addresses)
        self.tell_endpoints(*places)

    def tell_endpoints(self, *endpoints: Endpoint) -> None:
        self._sets.put_nowait(frozenset(endpoints))

    async def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        while True:
            told = await self._sets.get()
            if isinstance(told, Exception):
                raise told
            yield told

    def fail(self) -> None:
        self._sets.put_nowait(RuntimeError("a mistake"))


class Site:
    """A gateway with its queue and its scaler; `capacity` is what the stages report."""

    def __init__(self, listen: str = "127.0.0.1:0", **settings: float) -> None:
        config = GatewayConfig(scaler_listen=listen, max_waiting=3, reconnect_s=0.1, **settings)
        stages = {role: StageConfig(slots=slots) for role, slots in SLOTS.items()}
        self.admission = Admission(config, Metrics(in_flight=lambda: 0))
        self.found = Told()
        self.capacity: dict[str, Capacity] = {}
        self.changes = ChangeSignal()
        self.scaler = Scaler(
            Deployment(stages=stages, gateway=config),
            self.admission,
            self.found,
            lambda: self.capacity,
            self.changes,
        )
        self._places = ExitStack()

    async def __aenter__(self) -> Site:
        await self.scaler.__aenter__()
        return self

    async def __aexit__(self, *unused: object) -> None:
        self._places.close()
        await self.scaler.__aexit__(None, None, None)

    @property
    def address(self) -> str:
        return self.scaler.address

    def asks(self, wish: Wish) -> None:
        """A request asks for a place, and keeps it."""
        self._places.enter_context(self.admission.place(wish, HERE))

    def leave(self) -> None:
        self._places.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        while True:
            changed = self.changes.next
            if holds():
                return
            await changed.wait()

    async def until_demand(self, role: str, slots: float) -> None:
        await self.until(lambda: self.scaler.demand(role) == slots)


def meet(*sites: Site) -> None:
    """Each finds all of them, itself as well."""
    for site in sites:
        site.found.tell(*(each.address for each in sites))


async def test_two_gateways_tell_keda_the_same_sum() -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(Site())
        other = await stack.enter_async_context(Site())
        meet(one, other)
        for site in (one, other):
            site.capacity = {"thinker": Capacity((8, 8), 5), "talker": Capacity((4,), 3)}
            site.asks(WRITTEN)
        for wish in (SPOKEN, WRITTEN):
            one.asks(wish)
        for _ in range(3):
            other.asks(SPOKEN)
        with pytest.raises(ResourceExhausted), other.admission.place(SPOKEN, HERE) as refused:
            await refused.granted()
        # In use 3, waiting 1 and 3, refused 1: nobody knows for how long a slot is held.
        for site in (one, other):
            await site.until_demand("talker", 8)
            await site.until_demand("thinker", 11)
        for site in (one, other):
            keda = await stack.enter_async_context(KedaClient(site.address, stage="talker"))
            value, spec = await keda.value(), await keda.spec()
            assert (value.metricValue, value.metricValueFloat) == (8, 8.0)
            assert value.metricName == spec.metricName == "antiphon-talker-slots"
            assert (spec.targetSize, spec.targetSizeFloat) == (3, 2.8)
            assert await keda.is_active()


async def test_activity_is_pushed_when_it_changes_wherever_the_demand_is() -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(Site())
        other = await stack.enter_async_context(Site())
        meet(one, other)
        keda = await stack.enter_async_context(KedaClient(one.address, stage="talker"))
        activity = await stack.enter_async_context(aclosing(keda.activity()))
        assert await anext(activity) is False
        other.asks(WRITTEN)
        other.asks(SPOKEN)
        assert await anext(activity) is True
        other.leave()
        assert await anext(activity) is False
        one.capacity = {"talker": Capacity((4,), 1)}
        one.changes.tell()
        assert await anext(activity) is True


async def test_a_gateway_that_is_found_twice_is_counted_once() -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(Site())
        other = await stack.enter_async_context(Site())
        for _ in range(3):
            one.asks(SPOKEN)
            other.asks(SPOKEN)
        port = other.address.rpartition(":")[2]
        one.found.tell(one.address, other.address, f"localhost:{port}")
        await one.until(lambda: len(one.scaler.peers.told_by) == 2)
        await one.until_demand("talker", 4)


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
    async with asyncio.timeout(60), Site() as one, Site() as other:
        one.found.fail()
        meet(one, other)
        other.asks(SPOKEN)
        other.asks(SPOKEN)
        await one.until_demand("talker", 1)


class Silent(demand_pb2_grpc.DemandServiceServicer):
    """Says once what it wants, and nothing more."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)

    async def WatchDemand(self, request: object, context: object) -> AsyncIterator[object]:
        roles = {"talker": demand_pb2.RoleDemand(waiting=7)}
        yield demand_pb2.GatewayDemand(boot_id="silent", roles=roles)
        self.asked.release()
        await asyncio.Event().wait()


async def test_a_gateway_that_says_nothing_more_is_not_counted_and_asked_again() -> None:
    server, silent = grpc.aio.server(options=SERVER_OPTIONS), Silent()
    demand_pb2_grpc.add_DemandServiceServicer_to_server(silent, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with Site(scaler_silence_s=0.2) as one:
        one.found.tell(address)
        await one.until_demand("talker", 7)
        await one.until_demand("talker", 0)
        await silent.asked.acquire()
        await silent.asked.acquire()
    await server.stop(None)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as opened:
        yield opened


@pytest.mark.parametrize(
    ("metadata", "code", "named"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "metadata.stage"),
        ({"stage": "singer"}, grpc.StatusCode.NOT_FOUND, "thinker, talker"),
        ({"stage": "talker", "target": "2"}, grpc.StatusCode.INVALID_ARGUMENT, "metadata.target"),
        ({"stage": "talker", "target": "x"}, grpc.StatusCode.INVALID_ARGUMENT, "metadata.target"),
    ],
)
async def test_a_trigger_that_is_wrong_is_told_what_is_wrong(
    site: Site, metadata: dict[str, str], code: grpc.StatusCode, named: str
) -> None:
    async with KedaClient(site.address, **metadata) as keda:
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await keda.spec()
        assert told.value.code() is code
        assert named in str(told.value.details())
        if "target" not in metadata:
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await anext(keda.activity())
            assert ended.value.code() is code


async def test_a_metric_that_there_is_not_is_refused(site: Site) -> None:
    async with KedaClient(site.address, stage="talker") as keda:
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await keda.value("antiphon-thinker-slots")
        assert told.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await keda.value("")).metricValue == 0


async def test_a_trigger_may_have_a_target_of_its_own(site: Site) -> None:
    async with KedaClient(site.address, stage="talker", target="0.5") as keda:
        assert (await keda.spec()).targetSizeFloat == 2.0
        site.capacity = {"talker": Capacity((8, 12), 0)}
        assert (await keda.spec()).targetSizeFloat == 5.0


async def test_a_gateway_tells_keda_what_its_stages_report() -> None:
    async with open_door(scaler_listen="127.0.0.1:0") as door:
        assert door.gateway.scaler is not None
        async with KedaClient(door.gateway.scaler.address, stage=TALKER) as keda:
            async with aclosing(keda.activity()) as activity:
                assert await anext(activity) is False
                door.fakes[TALKER].tell_load(slots=4, open_segments=3)
                assert await anext(activity) is True
            assert (await keda.value()).metricValueFloat == 3.0
            assert (await keda.spec()).targetSizeFloat == 2.8


async def refusal(asked: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await asked
    return told.value.code(), str(told.value.details())


async def test_a_gateway_that_lost_its_way_to_a_replica_tells_no_lower_number() -> None:
    async with open_replicas(talker=2, scaler_listen="127.0.0.1:0") as opened:
        scaler = opened.gateway.scaler
        assert scaler is not None
        lost, kept = opened.fakes[TALKER]
        for fake, taken in ((lost, 4), (kept, 1)):
            fake.tell_load(slots=4, open_segments=taken)
        await opened.until(lambda: scaler.demand(TALKER) == 5)
        async with KedaClient(scaler.address, stage=TALKER) as keda:
            assert (await keda.value()).metricValueFloat == 5.0
            await lost.die()
            await opened.until(lambda: opened.replica(lost).reported is None)
            for asked in (keda.value("antiphon-talker-slots"), keda.is_active()):
                code, details = await refusal(asked)
                assert code is grpc.StatusCode.UNAVAILABLE
                assert lost.address in details
            async with aclosing(keda.activity()) as activity:
                assert await anext(activity) is True
            await lost.start()
            await lost.set_serving(True)
            await opened.until(lambda: opened.replica(lost).busy)
            assert (await keda.value()).metricValueFloat == 5.0


async def test_a_gateway_tells_no_number_before_it_knows_whom_to_ask() -> None:
    nobody = "127.0.0.1:1"
    starting = Endpoint(TALKER, "a", nobody, ready=False)
    leaving = Endpoint(TALKER, "b", nobody, terminating=True)
    ready = Endpoint(TALKER, "c", nobody)
    config = GatewayConfig(scaler_listen="127.0.0.1:0")
    deployment = Deployment(stages={TALKER: StageConfig()}, gateway=config)
    found, admission = Told(), Admission(config, Metrics(in_flight=lambda: 0))
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(deployment, found))
        scaler = scaler_of(deployment, fleet, admission)
        assert scaler is not None
        await stack.enter_async_context(scaler)
        keda = await stack.enter_async_context(KedaClient(scaler.address, stage=TALKER))
        code, details = await refusal(keda.value())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "discovery" in details
        for endpoints, known in (
            ((), True),
            ((starting, leaving), True),
            ((starting, leaving, ready), False),
        ):
            found.tell_endpoints(*endpoints)
            while fleet.endpoints != frozenset(endpoints):
                await fleet.wait_changed()
            if known:
                assert (await keda.value()).metricValue == 0
                assert not await keda.is_active()
            else:
                assert (await refusal(keda.is_active()))[0] is grpc.StatusCode.UNAVAILABLE


@pytest.mark.asyncio(loop_scope="session")
async def test_a_gateway_without_a_port_for_it_has_no_scaler(door: Door) -> None:
    assert door.gateway.scaler is None
