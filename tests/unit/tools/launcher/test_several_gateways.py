"""Several gateways of one launcher: what each is given, and what the others do when one ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.deployment.gateway_config import GATEWAY_SETTINGS
from antiphon.deployment.schema import Deployment, GatewayConfig
from antiphon.errors import InvalidArgument, Unavailable
from antiphon.transport.listening import listen_sockets
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.events import (
    Exited,
    LaunchEvent,
    Loaded,
    Output,
    Restarting,
    StartFailed,
)
from antiphon_tools.launcher.gateways import (
    DIVIDED,
    MAX_GATEWAYS,
    with_gateways,
    with_reserved_ports,
)
from antiphon_tools.launcher.launcher import Launcher
from tests.unit.tools.launcher.fake_services import ROLES, Checkout, Pids

LONG_S = 240.0
NOT_TOTALS = {
    # Of one request, connection, conversation, answer or replica.
    "limits": {
        *("max_body_bytes", "max_body_values", "max_form_parts", "max_form_field_bytes"),
        *("max_parts", "max_recordings", "max_option_bytes", "max_tools", "max_tool_bytes"),
        *("max_choices", "max_image_bytes"),
    },
    "connections": {"max_head_bytes"},
    "conversations": {"max_retrieved_bytes"},
    "resume": {"bytes"},
    "fetch": {"max_fetch_bytes"},
    "pacing": {"max_stage_ahead_positions"},
    "health": {"eject_failures"},
    "failover": {"failovers", "max_history_bytes"},
    # Of each process.
    "media": {"max_spoken_bytes"},
}


class Told:
    """The events of a launcher, waited for."""

    def __init__(self) -> None:
        self.events: list[LaunchEvent] = []
        self._more = asyncio.Event()

    def __call__(self, event: LaunchEvent) -> None:
        self.events.append(event)
        self._more.set()

    async def wait(self, kind: type[LaunchEvent], service: str, times: int = 1) -> None:
        """Return when this has been told so many times of the service."""
        async with asyncio.timeout(LONG_S):
            while self.of(kind).count(service) < times:
                self._more.clear()
                await self._more.wait()

    def of(self, kind: type[LaunchEvent]) -> list[str]:
        return [each.service for each in self.events if isinstance(each, kind)]

    def config(self, service: str) -> GatewayConfig:
        lines = [
            each.line
            for each in self.events
            if isinstance(each, Output) and each.service == service
        ]
        return msgspec.yaml.decode("\n".join(lines), type=Deployment).gateway


def directory_of(pid: int) -> Path:
    """Where the launcher has written the deployment of a process."""
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return Path(command[command.index("--config") + 1]).parent


def launcher(checkout: Checkout, told: Told, **settings: Any) -> Launcher:
    deployment = local_deployment(checkout.model)
    return Launcher(deployment, root=checkout.root, report=told, gateways=2, **settings)


def whole_numbers() -> dict[str, set[str]]:
    """The gateway's settings that are whole numbers, by group."""
    found: dict[str, set[str]] = {}
    for group, kind in GATEWAY_SETTINGS.groups.items():
        for name, hint in typing.get_type_hints(kind).items():
            if hint is int:
                found.setdefault(group, set()).add(name)
    return found


def test_limits_on_totals_are_divided_and_rounded_up() -> None:
    given = gateway_config(max_calls=10, max_connections=3, failovers_per_minute=1)
    made = with_gateways(Deployment(gateway=given), 4).gateway
    assert made.sharing.ports
    assert made.metrics_listen == "127.0.0.1:0"
    assert made.queue.max_calls == 3
    assert made.connections.max_connections == 1
    assert made.failover.failovers_per_minute == 1
    assert made.limits.max_memory_bytes == given.limits.max_memory_bytes // 4
    for group, kind in GATEWAY_SETTINGS.groups.items():
        for name in set(kind.__struct_fields__) - set(DIVIDED.get(group, ())) - {"ports"}:
            assert getattr(getattr(made, group), name) == getattr(getattr(given, group), name)


def test_every_whole_number_is_either_a_total_or_listed_here_as_none() -> None:
    totals = {group: set(names) for group, names in DIVIDED.items()}
    listed = {
        group: totals.get(group, set()) | NOT_TOTALS.get(group, set())
        for group in totals.keys() | NOT_TOTALS.keys()
    }
    assert whole_numbers() == listed


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"metrics_listen": "127.0.0.1:9100"}, "gateway.metrics_listen"),
        ({"scaler_listen": "127.0.0.1:0"}, "gateway.scaler.listen"),
        ({"max_memory_bytes": 7 << 20, "max_body_bytes": 1 << 20}, "limits.max_memory_bytes"),
    ],
)
def test_settings_that_several_gateways_cannot_have_are_refused(
    settings: dict[str, Any], field: str
) -> None:
    deployment = Deployment(gateway=gateway_config(**settings))
    with pytest.raises(InvalidArgument, match=field):
        with_gateways(deployment, 2)


def test_memory_that_is_just_enough_for_the_largest_body_is_taken() -> None:
    enough = gateway_config(max_memory_bytes=8 << 20, max_body_bytes=1 << 20)
    made = with_gateways(Deployment(gateway=enough), 2)
    assert made.gateway.limits.max_memory_bytes == 4 << 20


@pytest.mark.parametrize("count", [0, -1, MAX_GATEWAYS + 1])
def test_number_of_gateways_has_bounds(checkout: Checkout, count: int) -> None:
    with pytest.raises(InvalidArgument, match=f"--gateways {count}: must be from 1 to"):
        Launcher(local_deployment(checkout.model), root=checkout.root, gateways=count)


def test_reserved_ports_are_for_gateways_alone_until_they_are_released() -> None:
    deployment = Deployment(
        gateway=GatewayConfig(http_listen="localhost:0", grpc_listen="127.0.0.1:0")
    )
    with contextlib.ExitStack() as held:
        made = with_reserved_ports(deployment, held).gateway
        ports = [int(each.rpartition(":")[2]) for each in (made.http_listen, made.grpc_listen)]
        assert all(ports)
        for host, port in zip(("localhost", "127.0.0.1"), ports, strict=True):
            with pytest.raises(OSError, match="in use"), socket.socket() as other:
                other.bind(("127.0.0.1", port))
            for _ in range(2):
                for each in listen_sockets(host, port, share=True):
                    held.enter_context(each)
        taken = Deployment(gateway=made)
        with pytest.raises(OSError, match="in use"):
            listen_sockets("localhost", ports[0])
        # Two deployments would share the connections without knowing it.
        with pytest.raises(Unavailable, match=r"gateway\.http_listen"):
            with_reserved_ports(taken, held)
    for each in listen_sockets("127.0.0.1", ports[1]):
        each.close()


def test_reserved_port_may_be_that_of_an_environment_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOST", "127.0.0.1")
    gateway = GatewayConfig(http_listen="${HOST}:0", grpc_listen="${HOST}:0")
    with contextlib.ExitStack() as held:
        made = with_reserved_ports(Deployment(gateway=gateway), held).gateway
    assert made.http_listen.startswith("127.0.0.1:")


def test_port_of_a_program_that_shares_nothing_is_not_reserved() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.ExitStack() as held:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        deployment = Deployment(gateway=GatewayConfig(http_listen=listen))
        with pytest.raises(Unavailable, match=r"gateway\.http_listen"):
            with_reserved_ports(deployment, held)


def test_port_is_reserved_although_connections_of_an_earlier_program_have_just_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        listen = f"127.0.0.1:{earlier.getsockname()[1]}"
        with socket.create_connection(earlier.getsockname()) as client:
            # The side that closes first keeps the port in TIME_WAIT.
            earlier.accept()[0].close()
            assert client.recv(1) == b""
    deployment = Deployment(gateway=GatewayConfig(http_listen=listen))
    with contextlib.ExitStack() as held:
        with_reserved_ports(deployment, held)


async def test_every_gateway_is_given_the_same_ports_and_its_part_of_the_limits(
    checkout: Checkout,
) -> None:
    told = Told()
    async with launcher(checkout, told) as running:
        assert list(running.processes) == [*ROLES, "gateway", "gateway#2"]
        pids = Pids(process.pid for process in running.processes.values())
        directory = directory_of(running.processes["gateway"].pid)
        paths = [directory / "gateways", directory / "resume-key"]
        assert [each.stat().st_mode & 0o777 for each in paths] == [0o700, 0o600]
    assert not pids.left(0)
    assert not any(each.exists() for each in paths)
    first, second = told.config("gateway"), told.config("gateway#2")
    assert [first.sharing.directory, first.resume.key_file] == list(map(str, paths))
    assert first == second
    assert first.sharing.ports
    assert first.queue.max_calls == GatewayConfig().queue.max_calls // 2
    assert not first.http_listen.endswith(":0")
    assert not first.grpc_listen.endswith(":0")


async def test_gateways_stop_before_the_stages(checkout: Checkout) -> None:
    told = Told()
    async with launcher(checkout, told):
        pass
    order = told.of(Exited)
    assert set(order[:2]) == {"gateway", "gateway#2"}
    assert set(order[2:]) == set(ROLES)


async def test_gateway_that_ends_is_started_again_alone(checkout: Checkout) -> None:
    told = Told()
    async with launcher(checkout, told, on_exit="restart") as running:
        others = {name: each.pid for name, each in running.processes.items() if name != "gateway#2"}
        killed = running.processes["gateway#2"]
        os.kill(killed.pid, signal.SIGKILL)
        await told.wait(Loaded, "gateway#2", 2)
        assert {name: running.processes[name].pid for name in others} == others
    assert told.of(Restarting) == ["gateway#2"]


async def test_services_that_cannot_be_started_again_are_tried_until_they_can(
    checkout: Checkout,
) -> None:
    told = Told()
    away = checkout.root.with_name("away")
    async with launcher(checkout, told, on_exit="restart") as running:
        checkout.root.rename(away)
        os.kill(running.processes["gateway#2"].pid, signal.SIGKILL)
        await told.wait(StartFailed, "gateway#2", 2)
        away.rename(checkout.root)
        await told.wait(Loaded, "gateway#2", 2)
        os.kill(running.processes["gateway#2"].pid, signal.SIGKILL)
        await told.wait(Loaded, "gateway#2", 3)
    pauses = [each.after_s for each in told.events if isinstance(each, Restarting)]
    assert pauses[:3] == [0.5, 1, 2]
    failed = {each for each in told.events if isinstance(each, StartFailed)}
    assert failed == {StartFailed("gateway#2", "No such file or directory")}


async def test_deployment_that_leaves_ends_in_peace_ends_with_its_last_gateway(
    checkout: Checkout,
) -> None:
    told = Told()
    async with launcher(checkout, told) as running:
        first, second = running.processes["gateway"], running.processes["gateway#2"]
        second.kill()
        await told.wait(Exited, "gateway#2")
        assert not running.ended.is_set()
        first.kill()
        assert await running.wait() in (first, second)
