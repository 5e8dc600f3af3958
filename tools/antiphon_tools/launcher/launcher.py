"""Run a whole deployment on this host: every stage and the gateway as a separate process.

All stages start at once, and report their addresses before they load. Then the gateway starts with
a deployment file that has these addresses. The deployment is ready when all processes are ready.
Until then, the end of any process ends all of them. Afterwards the other processes continue, the
gateway rejects requests that it cannot serve, and a process that has ended is restarted at the same
address if this is enabled.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType

from antiphon.deployment.schema import Deployment, dump_deployment
from antiphon.errors import DeadlineExceeded, Unavailable
from antiphon.transport.listening import reached_here
from antiphon_tools.launcher.events import LaunchEvent, Report, Restarting
from antiphon_tools.launcher.plan import (
    GATEWAY,
    application_root,
    listen_addresses,
    replica_names,
    resolve,
    role_of,
    started_roles,
    with_addresses,
    with_priorities,
    with_resume_key,
)
from antiphon_tools.launcher.ports import check_free
from antiphon_tools.launcher.preflight import check_checkpoint, check_devices
from antiphon_tools.launcher.process import ServiceProcess, http_url
from antiphon_tools.launcher.supervision import Backoff, OnExit

STARTUP_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 15.0
METRICS_LISTEN = "127.0.0.1:0"
ReachedAt = Callable[[str, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Running:
    """A deployment that is ready.

    `processes` are by role, and "gateway"; of a stage's replicas the second is "ROLE#2". The
    endpoints are empty where there is no gateway.
    One that was started again takes its predecessor's place. `ended` is set when the end of one has
    ended the deployment.
    """

    model: Path
    http_url: str
    grpc_address: str
    processes: Mapping[str, ServiceProcess]
    startup_s: float
    ended: asyncio.Event

    async def wait(self) -> ServiceProcess:
        """Wait until the deployment has ended by itself; the service that ended it.

        With `restart` none does.
        """
        await self.ended.wait()
        # The gateway is the last: where stages are left alone when they end, it is the one.
        return [each for each in self.processes.values() if each.exited.done()][-1]


class Launcher:
    """Starts a deployment on entry and stops it on exit.

        >>> async with Launcher(Path("models/antiphon-demo")) as running:
        ...     async with antiphon.AsyncClient(running.grpc_address) as client:
        ...         print((await client.generate("Hello!").collect()).text)

    Takes a deployment or a checkpoint directory; a deployment without a model serves the embedded
    model. A stage with addresses runs elsewhere and is not started. With `only`, the launcher
    starts only these stages, and no gateway. With `metrics`, a stage without `metrics_listen` gets
    a free port of this host for its metrics. `report` is called with every `LaunchEvent`. `on_exit`
    determines what happens when a service ends after all are ready. `reached_at` receives a stage
    process's name and listen address, and returns the address for other processes, for example that
    of a proxy. Raises the errors of `plan.resolve`.

    Entering raises `Unavailable`, naming the stage, if a process ends before all are ready, or
    before any start if a port is in use. It raises `DeadlineExceeded` after `startup_timeout_s`.
    After an error or cancellation of the entering task, no process is left running.
    """

    def __init__(
        self,
        deployment: Deployment | Path,
        *,
        only: Sequence[str] = (),
        metrics: bool = False,
        on_exit: OnExit = "leave",
        report: Report | None = None,
        root: Path | None = None,
        startup_timeout_s: float = STARTUP_TIMEOUT_S,
        stop_timeout_s: float | None = None,
        reached_at: ReachedAt | None = None,
    ) -> None:
        if isinstance(deployment, Path):
            deployment = Deployment(model=str(deployment))
        self._root = application_root(gateway=not only) if root is None else root
        resolved, self._pipeline = resolve(deployment, self._root)
        self._deployment = with_priorities(resolved, self._pipeline)
        self._roles = started_roles(resolved, self._pipeline, only)
        self._has_gateway = not only
        self._metrics = metrics
        self._report = report or _ignore
        self._startup_timeout_s = startup_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._on_exit = on_exit
        self._reached_at = reached_at
        self._processes: dict[str, ServiceProcess] = {}
        self._one_ended = asyncio.Event()
        self._ended = asyncio.Event()
        self._all_were_ready = False
        self._stopping = asyncio.Event()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._files = contextlib.ExitStack()

    async def __aenter__(self) -> Running:
        check_free(listen_addresses(self._deployment, self._roles, gateway=self._has_gateway))
        if self._roles:
            stages = self._deployment.stages
            check_devices({role: stages[role] for role in self._roles if role in stages})
            check_checkpoint(Path(self._deployment.model))
        try:
            return await self._start_unless_one_ends()
        except BaseException:
            await self.stop()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def health_endpoints(self) -> list[str]:
        """The probe address of each process; empty if it does not listen."""
        return [each.health_address for each in self._processes.values()]

    async def stop(self) -> None:
        """Stop the gateway, then the stages, because requests in progress need the stages.

        Each process has `stop_timeout_s`, by default its `drain_s` and `STOP_TIMEOUT_S`. Then it is
        killed. Cancellation kills the processes immediately. Returns when all processes have ended.
        """
        self._stopping.set()
        stages = [name for name in self._processes if name != GATEWAY]
        try:
            await self._stop([name for name in self._processes if name == GATEWAY])
            await self._stop(stages)
        finally:
            self.kill()
            self._files.close()
        await asyncio.gather(*self._watches.values())

    async def _stop(self, names: Sequence[str]) -> None:
        """Ask these to stop, and kill those that have not in time."""
        for name in names:
            self._processes[name].terminate()
        watches = [self._watches[name] for name in names]
        if watches:
            await asyncio.wait(watches, timeout=self._stop_within_s(names))
        for name in names:
            self._processes[name].kill()

    def _stop_within_s(self, names: Sequence[str]) -> float:
        """How long these may take to stop."""
        if self._stop_timeout_s is not None:
            return self._stop_timeout_s
        gateway = self._deployment.gateway
        drains = [
            gateway.drain_s if name == GATEWAY else self._deployment.stage(role_of(name)).drain_s
            for name in names
        ]
        return max(drains) + STOP_TIMEOUT_S

    def kill(self) -> None:
        """End all processes at once; none is started again."""
        self._stopping.set()
        for process in self._processes.values():
            process.kill()

    async def _start_unless_one_ends(self) -> Running:
        """Start all, but give up when a process ends or time does."""
        start = asyncio.create_task(self._start())
        end = asyncio.create_task(self._one_ended.wait())
        try:
            await asyncio.wait(
                (start, end), timeout=self._startup_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            start.cancel()
            end.cancel()
            await asyncio.gather(start, end, return_exceptions=True)
        if self._one_ended.is_set():
            raise self._ended_early()
        if start.cancelled():
            raise self._too_slow()
        self._all_were_ready = True
        return start.result()

    async def _start(self) -> Running:
        """Start the stages, then the gateway; done when all are ready."""
        started_at = asyncio.get_running_loop().time()
        directory = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-")))
        config = _write(directory / "stages.yaml", self._deployment)
        stages: dict[str, list[ServiceProcess]] = {}
        for role in self._roles:
            stage = self._deployment.stage(role)
            argv = ["antiphon_services", role, "--config", config, "--listen", stage.listen]
            if self._metrics and not stage.metrics_listen:
                argv += ["--metrics-listen", METRICS_LISTEN]
            names = replica_names(role, stage.replicas)
            # In a pod of theirs processes have its name.
            called = [("--name", name) if self._has_gateway else () for name in names]
            stages[role] = [
                await self._spawn(name, *argv, *own)
                for name, own in zip(names, called, strict=True)
            ]
        addresses = {
            role: tuple([await self._address(each) for each in replicas])
            for role, replicas in stages.items()
        }
        url = grpc_address = ""
        if self._has_gateway:
            written = with_addresses(self._deployment, addresses)
            written = with_resume_key(written, directory / "resume-key")
            config = _write(directory / "deployment.yaml", written)
            gateway = await self._spawn(GATEWAY, "antiphon_gateway", "--config", config)
            endpoints = await gateway.listening
            url = http_url(endpoints.http, secure=self._deployment.gateway.tls is not None)
            grpc_address = reached_here(endpoints.grpc)
        for process in self._processes.values():
            await process.ready
        return Running(
            model=Path(self._deployment.model),
            http_url=url,
            grpc_address=grpc_address,
            processes=MappingProxyType(self._processes),
            startup_s=asyncio.get_running_loop().time() - started_at,
            ended=self._ended,
        )

    async def _address(self, process: ServiceProcess) -> str:
        """Return the address by which other processes reach a stage."""
        address = reached_here((await process.listening).address)
        if self._reached_at is None:
            return address
        return await self._reached_at(process.name, address)

    async def _spawn(self, name: str, *argv: str) -> ServiceProcess:
        process = await self._start_process(name, argv)
        self._watches[name] = asyncio.create_task(self._watch(name, argv))
        return process

    async def _start_process(self, name: str, argv: Sequence[str]) -> ServiceProcess:
        service = self._service(name)
        process = await service.start(name, argv, root=self._root, report=self._report)
        self._processes[name] = process
        if self._stopping.is_set():
            process.kill()
        return process

    def _service(self, name: str) -> type[ServiceProcess]:
        """How a service is run."""
        return ServiceProcess

    async def _watch(self, name: str, argv: Sequence[str]) -> None:
        """Report the ends of a service and do what they call for, until the deployment stops."""
        backoff = Backoff()
        endpoints: tuple[str, ...] = ()
        while True:
            process = self._processes[name]
            await process.report_exit()
            self._one_ended.set()
            if self._stopping.is_set() or not self._all_were_ready:
                return
            if self._on_exit != "restart":
                if name == GATEWAY or self._on_exit == "stop":
                    self._ended.set()
                return
            endpoints = endpoints or process.endpoints
            pause_s = backoff.pause_s(process.ready_for_s)
            self._report(Restarting(name, pause_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            await self._start_process(name, (*argv, *endpoints))

    def _ended_early(self) -> Unavailable:
        process = next(each for each in self._processes.values() if each.exited.done())
        return Unavailable(
            f"{process.name} {process.ending(' before everything was ready')}",
            stage=role_of(process.name),
        )

    def _too_slow(self) -> DeadlineExceeded:
        waiting = [name for name, each in self._processes.items() if not each.ready.done()]
        return DeadlineExceeded(
            f"not ready after {self._startup_timeout_s:g} s: {', '.join(waiting)}",
            stage=role_of(waiting[0]) if waiting else "",
        )


def _write(path: Path, deployment: Deployment) -> str:
    path.write_bytes(dump_deployment(deployment))
    return str(path)


def _ignore(event: LaunchEvent) -> None:
    """Ignore the events of a launcher."""
