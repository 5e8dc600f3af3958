"""The four services on two hosts, which are network namespaces: how their links agree to carry
payloads, that what is heard is the same, and what becomes of calls when the networks are cut.

The first host has thinker and talker, the second code2wav and the gateway, unless a test says
otherwise.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import antiphon
from antiphon.deployment.schema import (
    Deployment,
    GatewayConfig,
    StageConfig,
    dump_deployment,
)
from antiphon.deployment.stage_config import TransportName
from antiphon.errors import Unavailable
from antiphon_testkit.conversations import conversation
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.qwen3_omni.reference import Case, Reference
from antiphon_testkit.qwen3_omni.tiny_checkpoint import SMALL, build_tiny_checkpoint
from antiphon_tools.launcher.events import LaunchEvent, Output
from antiphon_tools.launcher.plan import application_root
from antiphon_tools.launcher.process import ServiceProcess
from tests.cluster.two_hosts import FIRST, SECOND, NoNamespaces, TwoHosts, two_hosts
from tests.equality.asking import AUDIO_TOLERANCE, Answer, ask, check, groups
from tests.equality.test_transports import TEXT_CASES, hum
from tests.equality.truth import Truth

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]

HOST_OF = {"thinker": FIRST, "talker": FIRST, "code2wav": SECOND}
THINKER_ALONE = {"thinker": FIRST, "talker": SECOND, "code2wav": SECOND}
# Where stages listen: those of the second host are the ends of links from the first.
NETWORK_OF = {FIRST: "control", SECOND: "stages"}
# Longer than anything here may take: what is cut is healed by the test.
RESUME_S = 200.0
LONG_CASE = Case(conversation(("user", "Hello")), talker_max_tokens=300)
AUDIO_CASES = [
    Case(conversation(("user", [hum(8.0, hertz)])), talker_max_tokens=20)
    for hertz in (300.0, 200.0, 500.0)
]


class Told:
    """What the services print, waited for."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []
        self._came = asyncio.Event()

    def __call__(self, event: LaunchEvent) -> None:
        if isinstance(event, Output):
            self._lines.append((event.service, event.line))
            self._came.set()
            self._came = asyncio.Event()

    @property
    def now(self) -> int:
        """From here on lines are to come."""
        return len(self._lines)

    async def wait(self, since: int, service: ServiceProcess, words: str) -> None:
        """Return when the service has said so, after that; fail when its process ends first."""
        while not any(s == service.name and words in line for s, line in self._lines[since:]):
            came = asyncio.create_task(self._came.wait())
            await asyncio.wait((came, service.exited), return_when=asyncio.FIRST_COMPLETED)
            came.cancel()
            if service.exited.done():
                pytest.fail(f"{service.name} {service.ending()}")


@dataclass(frozen=True)
class Running:
    """The services, and a client."""

    hosts: TwoHosts
    host_of: Mapping[str, str]
    services: dict[str, ServiceProcess]
    told: Told
    client: antiphon.AsyncClient


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint that speaks until its limit."""
    directory = tmp_path_factory.mktemp("talkative") / "talkative"
    build_tiny_checkpoint(directory, replace(SMALL, endless_speech=True))
    return directory


@pytest.fixture(scope="module")
def spoken(talkative: Path) -> Truth:
    """The reference on it."""
    return Truth(Reference(talkative))


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    try:
        with two_hosts() as made:
            yield made
    except NoNamespaces as reason:
        pytest.skip(f"needs network namespaces, which cannot be made here: {reason}")


@asynccontextmanager
async def running_on(
    hosts: TwoHosts, host_of: Mapping[str, str], model: Path, path: Path, transport: TransportName
) -> AsyncIterator[Running]:
    """All services, with this setting of their links."""
    told, services = Told(), dict[str, ServiceProcess]()
    config = stage_config(transport=transport, resume_window_s=RESUME_S)

    async def start(role: str, *arguments: str) -> None:
        program = ("tests.cluster.in_namespace", hosts.name(host_of.get(role, SECOND)))
        argv = (*program, *arguments)
        services[role] = await ServiceProcess.start(
            role, argv, root=application_root(), report=told
        )
        stack.push_async_callback(services[role].report_exit)
        stack.callback(services[role].kill)

    async with AsyncExitStack() as stack:
        for role, host in host_of.items():
            listen = f"{hosts.address(host, NETWORK_OF[host])}:0"
            file = path / f"{role}.yaml"
            file.write_bytes(dump_deployment(Deployment(model=str(model), stages={role: config})))
            await start(role, "antiphon_services", role, "--config", str(file), "--listen", listen)
        addresses = {role: (await each.wait_listening()).address for role, each in services.items()}
        endpoint = f"{hosts.address(SECOND, 'clients')}:0"
        file = path / "gateway.yaml"
        deployment = Deployment(
            stages={r: StageConfig(addresses=(address,)) for r, address in addresses.items()},
            gateway=GatewayConfig(http_listen=endpoint, grpc_listen=endpoint),
        )
        file.write_bytes(dump_deployment(deployment))
        await start("gateway", "antiphon_gateway", "--config", str(file))
        await services["gateway"].wait_ready()
        client = antiphon.AsyncClient(services["gateway"].address)
        await stack.enter_async_context(client)
        yield Running(hosts, host_of, services, told, client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    hosts: TwoHosts, talkative: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("auto")
    async with running_on(hosts, HOST_OF, talkative, path, "auto") as services:
        yield services


async def links(running: Running) -> dict[tuple[str, str], dict[str, Any]]:
    """The link from a role to another of the first host's stages, as these tell."""
    roles = [role for role, host in running.host_of.items() if host == FIRST]
    addresses = [running.services[role].address for role in roles]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cluster.in_namespace", running.hosts.name(FIRST)),
        *("tests.cluster.describe_stages", *addresses),
        stdout=asyncio.subprocess.PIPE,
        cwd=application_root(),
    )
    told, _ = await process.communicate()
    by_role = zip(roles, json.loads(told), strict=True)
    return {(role, each["peer"]): each for role, found in by_role for each in found}


async def check_reference(running: Running, truth: Truth) -> None:
    for case in [*truth.safe(TEXT_CASES, 1), *truth.safe(AUDIO_CASES, 1)]:
        check(await ask(running.client, case, groups=groups(truth)), truth.of(case))


async def test_links_agree_by_proof_and_answers_equal_the_reference(
    running: Running, spoken: Truth
) -> None:
    await check_reference(running, spoken)
    agreed = await links(running)
    within, across = agreed["thinker", "talker"], agreed["talker", "code2wav"]
    assert within["transport"] == "shared_memory"
    assert within["counts"]["chunks.shared_memory"] > 0
    assert across["transport"] == "grpc"
    assert any("shared_memory" in reason for reason in across["refused"]), across["refused"]


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "agreed"), [("auto", "grpc"), ("nccl", "gloo")])
async def test_rows_travel_across_hosts_and_answers_equal_the_reference(
    hosts: TwoHosts,
    talkative: Path,
    spoken: Truth,
    tmp_path: Path,
    transport: TransportName,
    agreed: str,
) -> None:
    async with running_on(hosts, THINKER_ALONE, talkative, tmp_path, transport) as services:
        await check_reference(services, spoken)
        across = (await links(services))["thinker", "talker"]
    assert across["transport"] == agreed
    assert across["counts"][f"chunks.{agreed}"] > 0


async def test_a_call_goes_on_when_the_network_between_stages_was_cut(
    running: Running, spoken: Truth
) -> None:
    code_groups = groups(spoken)
    expected = await ask(running.client, LONG_CASE, groups=code_groups)
    since, begun = running.told.now, asyncio.Event()

    async def heard() -> Answer:
        return await ask(running.client, LONG_CASE, groups=code_groups, on_audio=begun.set)

    asking = asyncio.create_task(heard())
    await begun.wait()
    running.hosts.cut("stages")
    link = f"the link to {running.services['code2wav'].address}"
    await running.told.wait(since, running.services["talker"], f"{link} failed")
    assert not asking.done()
    running.hosts.heal("stages")
    answer = await asking
    await running.told.wait(since, running.services["talker"], f"{link} has reconnected")
    assert answer.ids == expected.ids
    np.testing.assert_array_equal(answer.codes, expected.codes)
    np.testing.assert_allclose(answer.samples, expected.samples, rtol=0, atol=AUDIO_TOLERANCE)


async def test_a_call_ends_by_type_when_the_gateway_is_cut_off_and_others_follow(
    running: Running, spoken: Truth
) -> None:
    since, begun = running.told.now, asyncio.Event()
    asking = asyncio.create_task(
        ask(running.client, LONG_CASE, groups=groups(spoken), on_audio=begun.set)
    )
    await begun.wait()
    running.hosts.cut("control")
    with pytest.raises(Unavailable) as ended:
        await asking
    assert ended.value.stage in {"thinker", "talker"}
    running.hosts.heal("control")
    for role in ("thinker", "talker"):
        address = running.services[role].address
        await running.told.wait(
            since, running.services["gateway"], f"stage {role} at {address} is ready"
        )
    await check_reference(running, spoken)
