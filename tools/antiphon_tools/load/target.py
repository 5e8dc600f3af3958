"""The service under test. It is either already running or started for the test."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.deployment.schema import Deployment, dump_deployment
from antiphon.errors import DeadlineExceeded, Unavailable
from antiphon_tools.launcher.events import Report
from antiphon_tools.launcher.launcher import (
    STARTUP_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Launcher,
)
from antiphon_tools.launcher.plan import GATEWAY, application_root, resolve, with_gateway
from antiphon_tools.launcher.process import ServiceProcess

LOOPBACK = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Target:
    """The service under test.

    `stages` contains the addresses of known stages by role. `pids` contains the process IDs of
    services that were started for the test, by name.
    """

    grpc_address: str = ""
    http_url: str = ""
    stages: Mapping[str, str] = field(default_factory=dict)
    pids: Mapping[str, int] = field(default_factory=dict)


def target_at(service: str, address: str) -> Target:
    """Return a running service. An address such as `http://...` is a gateway's HTTP endpoint."""
    if "://" in address:
        return Target(http_url=address)
    stages = {} if service == GATEWAY else {service: address}
    return Target(grpc_address=address, stages=stages)


@contextlib.asynccontextmanager
async def started(
    service: str, deployment: Deployment, report: Report, launcher: type[Launcher] = Launcher
) -> AsyncIterator[Target]:
    """Start one stage, or the complete deployment for the gateway, on the loopback interface.

    The processes are stopped afterwards. Raises the errors of `Launcher`.
    """
    if service != GATEWAY:
        async with _one_stage(service, deployment, report) as process:
            address = process.address
            yield Target(address, stages={service: address}, pids={service: process.pid})
        return
    endpoints = {"http_listen": LOOPBACK, "grpc_listen": LOOPBACK}
    async with launcher(with_gateway(deployment, endpoints), report=report) as running:
        yield Target(
            grpc_address=running.grpc_address,
            http_url=running.http_url,
            stages={n: p.address for n, p in running.processes.items() if n != GATEWAY},
            pids={name: process.pid for name, process in running.processes.items()},
        )


@contextlib.asynccontextmanager
async def _one_stage(
    role: str, deployment: Deployment, report: Report
) -> AsyncIterator[ServiceProcess]:
    """Start a single stage. The other stages do not have to fit on this host."""
    root = application_root()
    deployment, _ = resolve(deployment, root)
    with tempfile.TemporaryDirectory(prefix="antiphon-load-") as directory:
        config = Path(directory) / "deployment.yaml"
        config.write_bytes(dump_deployment(deployment))
        argv = ("antiphon_services", role, "--config", str(config), "--listen", LOOPBACK)
        process = await ServiceProcess.start(role, argv, root=root, report=report)
        ended = asyncio.create_task(process.report_exit())
        try:
            await _ready(process, ended)
            yield process
        finally:
            process.terminate()
            try:
                await asyncio.wait([ended], timeout=STOP_TIMEOUT_S)
            finally:
                process.kill()
            await ended


async def _ready(process: ServiceProcess, ended: asyncio.Task[None]) -> None:
    """Wait until the stage is ready. Raises `Unavailable` or `DeadlineExceeded`."""
    first = asyncio.FIRST_COMPLETED
    await asyncio.wait((process.ready, ended), timeout=STARTUP_TIMEOUT_S, return_when=first)
    if ended.done():
        raise Unavailable(f"{process.name} {process.ending()}", stage=process.name)
    if not process.ready.done():
        raise DeadlineExceeded(f"{process.name}: was not ready after {STARTUP_TIMEOUT_S:g} s")
