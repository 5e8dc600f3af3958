from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, aclosing

import grpc
import pytest

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.errors import ResourceExhausted
from antiphon_gateway.admission.reservation import Admission
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.scaler.demand import Capacity
from antiphon_gateway.scaler.deployed import scaler_of
from antiphon_testkit.gateway_settings import gateway_config
from tests.contract.fake_stages import TALKER
from tests.contract.keda_client import KedaClient
from tests.contract.replicated_stages import open_replicas
from tests.contract.scaler_site import HERE, SPOKEN, WRITTEN, Site, Told, meet
from tests.contract.served_gateway import ServedGateway, serve_gateway


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
    async with serve_gateway(scaler_listen="127.0.0.1:0") as served:
        assert served.gateway.scaler is not None
        async with KedaClient(served.gateway.scaler.address, stage=TALKER) as keda:
            async with aclosing(keda.activity()) as activity:
                assert await anext(activity) is False
                served.fakes[TALKER].tell_load(slots=4, open_segments=3)
                assert await anext(activity) is True
            assert (await keda.value()).metricValueFloat == 3.0
            assert (await keda.spec()).targetSizeFloat == 2.8


async def test_a_replica_that_drains_counts_by_what_it_has_and_not_by_its_slots() -> None:
    async with open_replicas(talker=2, scaler_listen="127.0.0.1:0") as opened:
        scaler = opened.gateway.scaler
        assert scaler is not None
        leaving, kept = opened.fakes[TALKER]
        kept.tell_load(slots=8, open_segments=1)
        leaving.tell_load(slots=2, open_segments=2)
        await opened.until(lambda: scaler.demand(TALKER) == 3)
        async with KedaClient(scaler.address, stage=TALKER, target="0.5") as keda:
            assert (await keda.spec()).targetSizeFloat == 2.5
            leaving.tell_load(slots=2, open_segments=2, draining=True)
            await opened.until(lambda: opened.replica(leaving).draining)
            assert (await keda.spec()).targetSizeFloat == 4.0
            assert (await keda.value()).metricValueFloat == 3.0


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
    config = gateway_config(scaler_listen="127.0.0.1:0")
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
async def test_a_gateway_without_a_port_for_it_has_no_scaler(served: ServedGateway) -> None:
    assert served.gateway.scaler is None
