"""The launcher as a library, with real processes."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from typing import Any

import msgspec
import pytest

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.events import (
    Exited,
    LaunchEvent,
    Listening,
    Loaded,
    Output,
    ProcessStarted,
)
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import with_addresses, with_gateway
from tests.unit.tools.launcher.fake_services import (
    DRAINING_GATEWAY,
    GATEWAY,
    ROLES,
    STAGE,
    STUBBORN,
    Checkout,
    Pids,
)

SILENT = "signal.pause()"
ALL = (*ROLES, "gateway")


class Told(list[LaunchEvent]):
    """The events that a launcher reported."""

    def said(self, service: str) -> list[str]:
        return [each.line for each in self if isinstance(each, Output) and each.service == service]

    def of(self, kind: type[LaunchEvent]) -> list[str]:
        return [each.service for each in self if isinstance(each, kind)]

    def pids(self) -> list[int]:
        return [each.pid for each in self if isinstance(each, ProcessStarted)]


def launcher(checkout: Checkout, told: Told, **settings: Any) -> Launcher:
    deployment = local_deployment(checkout.model)
    return Launcher(deployment, root=checkout.root, report=told.append, **settings)


async def test_launcher_tells_addresses_when_all_are_ready(checkout: Checkout) -> None:
    told = Told()
    async with launcher(checkout, told) as running:
        assert running.http_url == "http://127.0.0.1:8000"
        assert running.grpc_address == "127.0.0.1:9000"
        assert set(running.processes) == set(ALL)
        assert running.processes["talker"].address.startswith("127.0.0.1:")
        assert told.of(ProcessStarted) == list(ALL)
        assert sorted(told.of(Loaded)) == sorted(told.of(Listening)) == sorted(ALL)
        assert running.startup_s > 0


async def test_services_share_the_launchers_session_but_not_its_process_group(
    checkout: Checkout,
) -> None:
    async with launcher(checkout, Told()) as running:
        for process in running.processes.values():
            assert os.getpgid(process.pid) == process.pid
            assert os.getsid(process.pid) == os.getsid(0)


async def test_launcher_gives_stages_a_metrics_endpoint_when_asked_and_leaves_those_that_have_one(
    checkout: Checkout,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = {"talker": StageConfig(metrics_listen=f"127.0.0.1:{free.getsockname()[1]}")}
    deployment = local_deployment(checkout.model, **own)
    told = Told()
    async with Launcher(
        deployment, root=checkout.root, report=told.append, metrics=True
    ) as running:
        urls = {name: process.metrics_url for name, process in running.processes.items()}
    assert urls == {
        "thinker": "http://127.0.0.1:9/metrics",
        # The talker was not told on its command line, and the fake one reads no file.
        "talker": "",
        "code2wav": "http://127.0.0.1:9/metrics",
        "gateway": "http://127.0.0.1:8000/metrics",
    }
    metrics = {each.service: each.metrics for each in told if isinstance(each, Listening)}
    assert metrics["thinker"] == "127.0.0.1:9"


async def test_launcher_opens_no_metrics_endpoint_unless_asked(checkout: Checkout) -> None:
    async with launcher(checkout, Told()) as running:
        assert not any(running.processes[role].metrics_url for role in ROLES)


async def test_launcher_gives_gateway_the_stages_addresses_and_the_model(
    checkout: Checkout,
) -> None:
    told = Told()
    async with launcher(checkout, told) as running:
        addresses = {role: (running.processes[role].address,) for role in ROLES}
    written = msgspec.yaml.decode("\n".join(told.said("gateway")), type=Deployment)
    assert {role: stage.addresses for role, stage in written.stages.items()} == addresses
    assert written.model == str(checkout.model)


async def test_launcher_leaves_nothing_running_when_it_exits(checkout: Checkout) -> None:
    told = Told()
    async with launcher(checkout, told) as running:
        pids = Pids(process.pid for process in running.processes.values())
    assert not pids.left(0)
    assert sorted(told.of(Exited)) == sorted(ALL)


async def test_launcher_starts_stages_without_a_gateway_when_only_these_are_asked_for(
    checkout: Checkout,
) -> None:
    told = Told()
    async with launcher(checkout, told, only=["code2wav", "talker"]) as running:
        assert (running.http_url, running.grpc_address) == ("", "")
        assert list(running.processes) == ["code2wav", "talker"]
        assert sorted(told.of(Loaded)) == ["code2wav", "talker"]
        pids = Pids(process.pid for process in running.processes.values())
    assert not pids.left(0)
    assert sorted(told.of(ProcessStarted)) == ["code2wav", "talker"]


async def test_launcher_starts_the_gateway_only_when_all_stages_listen(checkout: Checkout) -> None:
    told = Told()
    async with launcher(checkout, told):
        order = [(type(each), each.service) for each in told]
    gateway = order.index((ProcessStarted, "gateway"))
    assert all(order.index((Listening, role)) < gateway for role in ROLES)


@pytest.mark.parametrize("name", ["talker", "gateway"])
async def test_launcher_names_the_service_when_it_dies_before_all_are_ready(
    checkout: Checkout, name: str
) -> None:
    told = Told()
    checkout.write(name, "print('no such device'); sys.exit(3)")
    with pytest.raises(
        Unavailable, match=rf"{name} exited with status 3 .*\n  no such device"
    ) as e:
        async with launcher(checkout, told):
            pytest.fail("it became ready")
    assert e.value.stage == name
    assert set(told.of(Exited)) == set(told.of(ProcessStarted))


async def test_launcher_stops_all_when_one_dies_after_it_was_ready_but_others_were_not(
    checkout: Checkout,
) -> None:
    told = Told()
    checkout.write("thinker", STAGE.replace("signal.pause()", "sys.exit(4)"))
    checkout.write("talker", SILENT)
    with pytest.raises(Unavailable, match="thinker exited with status 4"):
        async with launcher(checkout, told):
            pytest.fail("it became ready")
    assert set(told.of(Exited)) == set(ROLES)


async def test_launcher_keeps_the_others_running_when_one_dies_after_start(
    checkout: Checkout,
) -> None:
    told = Told()
    async with launcher(checkout, told) as running:
        os.kill(running.processes["talker"].pid, 9)
        assert await running.processes["talker"].wait() == -9
        alive = {name for name, each in running.processes.items() if not each.exited.done()}
        assert alive == {"thinker", "code2wav", "gateway"}
        os.kill(running.processes["gateway"].pid, 9)
        assert (await running.wait()).name == "gateway"
        assert running.processes["gateway"].exited.result() == -9


async def test_launcher_raises_deadline_exceeded_when_a_stage_never_gets_ready(
    checkout: Checkout,
) -> None:
    told = Told()
    checkout.write("code2wav", SILENT)
    with pytest.raises(DeadlineExceeded, match="code2wav") as caught:
        async with launcher(checkout, told, startup_timeout_s=1.0):
            pytest.fail("it became ready")
    assert "code2wav" in caught.value.message
    assert set(told.of(Exited)) == set(told.of(ProcessStarted))


@pytest.mark.parametrize("taken", ["gateway.http_listen", "stages.talker.listen"])
async def test_launcher_starts_nothing_when_a_port_is_taken(checkout: Checkout, taken: str) -> None:
    told = Told()
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        deployment = local_deployment(checkout.model, talker=StageConfig(listen="127.0.0.1:0"))
        if taken == "stages.talker.listen":
            deployment = local_deployment(checkout.model, talker=StageConfig(listen=address))
        else:
            deployment = with_gateway(deployment, {"http_listen": address})
        with pytest.raises(Unavailable, match=f"{taken}: can't listen on {address}"):
            async with Launcher(deployment, root=checkout.root, report=told.append):
                pytest.fail("it became ready")
    assert not told


async def test_launcher_names_the_remedy_without_a_temporary_directory(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(checkout.root / "nothing"))
    told = Told()
    with pytest.raises(FailedPrecondition, match="set TMPDIR to a directory"):
        async with launcher(checkout, told):
            pytest.fail("it became ready")
    assert not told


async def test_launcher_stops_all_when_its_start_is_cancelled(checkout: Checkout) -> None:
    told = Told()
    checkout.write("code2wav", "print('here'); " + SILENT)
    here = asyncio.Event()

    def report(event: LaunchEvent) -> None:
        told.append(event)
        if event == Output("code2wav", "here"):
            here.set()

    async def enter() -> None:
        async with Launcher(local_deployment(checkout.model), root=checkout.root, report=report):
            pytest.fail("it became ready")

    entering = asyncio.create_task(enter())
    await here.wait()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert set(told.of(Exited)) == set(told.of(ProcessStarted)) == set(ROLES)


async def test_launcher_kills_a_stage_when_it_does_not_stop(checkout: Checkout) -> None:
    checkout.write("talker", STUBBORN)
    async with launcher(checkout, Told(), stop_timeout_s=2.0) as running:
        processes = running.processes
    assert processes["talker"].exited.result() == -9
    assert processes["thinker"].exited.result() == -15


async def test_launcher_stops_the_stages_when_the_gateway_has_ended(checkout: Checkout) -> None:
    checkout.write("gateway", DRAINING_GATEWAY)
    told = Told()
    async with launcher(checkout, told):
        pass
    assert told.said("gateway")[-1] == "3 stages, 0 gone"


async def test_launcher_ends_a_stage_when_its_announcement_has_no_form(checkout: Checkout) -> None:
    checkout.write("talker", "print('hello', file=announce, flush=True); " + SILENT)
    with pytest.raises(Unavailable, match="announcement 'hello'") as caught:
        async with launcher(checkout, Told()):
            pytest.fail("it became ready")
    assert caught.value.stage == "talker"


async def test_launcher_ends_what_a_stage_started_when_the_stage_dies(checkout: Checkout) -> None:
    worker = "print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1).pid)"
    checkout.write("talker", worker + STAGE)
    told = Told()
    async with launcher(checkout, told) as running:
        pids = Pids([int(told.said("talker")[0])])
        os.kill(running.processes["talker"].pid, 9)
        await running.processes["talker"].wait()
        assert not await asyncio.to_thread(pids.left)


async def test_launcher_leaves_a_stage_alone_when_it_has_an_address(checkout: Checkout) -> None:
    addresses = {"talker": ("10.0.0.7:50051",)}
    elsewhere = with_addresses(local_deployment(checkout.model), addresses)
    told = Told()
    async with Launcher(elsewhere, root=checkout.root, report=told.append) as running:
        assert set(running.processes) == {"thinker", "code2wav", "gateway"}
    written = msgspec.yaml.decode("\n".join(told.said("gateway")), type=Deployment)
    assert written.stage("talker").addresses == ("10.0.0.7:50051",)


async def test_launcher_keeps_a_url_when_the_gateway_announces_one(checkout: Checkout) -> None:
    checkout.write("gateway", GATEWAY.replace("127.0.0.1:8000", "http://127.0.0.1:8000"))
    async with launcher(checkout, Told()) as running:
        assert running.http_url == "http://127.0.0.1:8000"
