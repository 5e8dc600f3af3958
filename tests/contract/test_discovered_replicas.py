"""A gateway that finds its stages by EndpointSlices: who comes, who leaves, no API for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import yaml

from antiphon.deployment.schema import Deployment, DiscoveryConfig, GatewayConfig, StageConfig
from antiphon.errors import InvalidArgument
from antiphon_gateway.fleet.discovery.chosen import discovery_of
from antiphon_gateway.server import Gateway
from antiphon_testkit.fake_kubernetes import FakeApi, endpoint, serve_api
from tests.cluster.kubelet import kubeconfig
from tests.cluster.own_address import own_address
from tests.contract.fake_stages import CODE2WAV, ROLES, TALKER, THINKER, USUAL, FakeStage, describe
from tests.contract.replicated_stages import Replicas
from tests.contract.served_gateway import deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVICES = {role: f"speech-{role}" for role in ROLES}


class Discovered(Replicas):
    """Fakes that listen at one port on addresses of their own, as pods do."""

    def __init__(self, api: FakeApi, fakes: dict[str, list[FakeStage]], gateway: Gateway) -> None:
        super().__init__(fakes, gateway)
        self.api = api

    def publish(self, role: str, *leaving: FakeStage, gone: tuple[FakeStage, ...] = ()) -> None:
        """Have the slice of a role tell of its fakes."""
        publish(self.api, role, [f for f in self.fakes[role] if f not in gone], leaving)


def port_of(fake: FakeStage) -> int:
    return int(fake.address.rpartition(":")[2])


def publish(
    api: FakeApi, role: str, fakes: list[FakeStage], leaving: tuple[FakeStage, ...] = ()
) -> None:
    endpoints = [
        endpoint(
            fake.address.partition(":")[0], f"pod-at-{fake.address}", terminating=fake in leaving
        )
        for fake in fakes
    ]
    ports = {"metrics": 1, "grpc": port_of(fakes[0])}
    api.put(f"{SERVICES[role]}-1", SERVICES[role], endpoints, ports=ports)


@asynccontextmanager
async def discovered(path: Path) -> AsyncIterator[Discovered]:
    """One replica of each stage, at a port of its own; another thinker that nobody tells of yet."""
    fakes: dict[str, list[FakeStage]] = {role: [] for role in ROLES}
    async with AsyncExitStack() as stack:
        for role in (*ROLES, THINKER):
            host = own_address()
            # All pods behind a service listen at the same port.
            port = port_of(fakes[role][0]) if fakes[role] else 0
            fake = FakeStage(role, USUAL[role], describe(role), address=f"{host}:{port}")
            fake.description.boot_id = f"boot-at-{host}"
            await fake.start()
            stack.push_async_callback(fake.die)
            fakes[role].append(fake)
        api = await stack.enter_async_context(serve_api())
        for role in ROLES:
            publish(api, role, fakes[role][:1])
        config = path / "kubeconfig"
        config.write_text(yaml.safe_dump(kubeconfig(api.url)))
        discovery = DiscoveryConfig(
            kind="kubernetes",
            namespace="speech",
            services=SERVICES,
            kubeconfig=str(config),
        )
        deployment = deployment_of(discovery=discovery)
        for role in ROLES:
            deployment.stages[role] = StageConfig()
        gateway = await stack.enter_async_context(Gateway(deployment))
        opened = Discovered(api, fakes, gateway)
        stack.push_async_callback(opened.http.aclose)
        await opened.until(lambda: all(each.serving == 1 for each in gateway.fleet))
        yield opened


async def test_replica_gets_what_one_that_leaves_gets_no_more(tmp_path: Path) -> None:
    async with discovered(tmp_path) as found:
        old, new = found.fakes[THINKER]
        thinker = found.gateway.fleet[THINKER]
        assert (await found.chat()).status_code == 200
        assert found.sessions() == [1, 0]
        # It comes.
        found.publish(THINKER)
        await found.until(lambda: thinker.serving == 2)
        # The old one leaves, and is there still.
        found.publish(THINKER, old)
        await found.until(lambda: thinker.serving == 1)
        shown = (await found.http.get("/metrics")).text.splitlines()
        for state, count in {"ready": 1, "not_ready": 0, "terminating": 1}.items():
            series = f'antiphon_gateway_endpoints{{role="{THINKER}",state="{state}"}} {count}.0'
            assert series in shown
        (synced,) = [s for s in shown if s.startswith("antiphon_gateway_discovery_last_sync_")]
        assert float(synced.split()[1]) > 0
        for _ in range(5):
            assert (await found.chat()).status_code == 200
        assert found.sessions() == [1, 5]
        # It has gone.
        found.publish(THINKER, gone=(old,))
        await found.until(lambda: [each.address for each in thinker] == [new.address])


async def test_calls_are_served_while_the_api_is_away(tmp_path: Path) -> None:
    async with discovered(tmp_path) as found:
        await found.api.stop()
        for _ in range(3):
            assert (await found.chat()).status_code == 200
        found.publish(THINKER)
        await found.api.start()
        await found.until(lambda: found.gateway.fleet[THINKER].serving == 2)


def _deployment(services: dict[str, str]) -> Deployment:
    discovery = DiscoveryConfig(kind="kubernetes", namespace="speech", services=services)
    stages = {THINKER: StageConfig(), TALKER: StageConfig()}
    return Deployment(stages=stages, gateway=GatewayConfig(discovery=discovery))


@pytest.mark.parametrize(
    ("services", "named"),
    [
        ({THINKER: "a"}, TALKER),
        ({THINKER: "a", TALKER: "b", CODE2WAV: "c"}, CODE2WAV),
        ({THINKER: "a", TALKER: "a"}, ""),
    ],
)
async def test_deployment_is_refused_unless_each_stage_has_a_service_of_its_own(
    services: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        discovery_of(_deployment(services))
    assert refused.value.field == f"gateway.discovery.services.{named}".rstrip(".")
