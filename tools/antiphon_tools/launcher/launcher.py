"""Runs a complete deployment on this host, with the gateway and each stage in separate processes.

All stages start at the same time and report their addresses before they load. The gateway is then
started with a deployment file that contains these addresses. The deployment is ready when all
processes are. If a process ends before that, all processes are stopped. If one ends later, the
others keep running, and the gateway rejects requests that it can't serve. If restarts are enabled,
the process is restarted at the same address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType

from antiphon.deployment.schema import Deployment, dump_deployment
from antiphon.errors import DeadlineExceeded, Unavailable
from antiphon.transport.listening import reached_here
from antiphon_tools.launcher.events import LaunchEvent, Report, Restarting, StartFailed
from antiphon_tools.launcher.forking import ForkServer
from antiphon_tools.launcher.gateways import (
    check_count,
    with_gateways,
    with_reserved_ports,
    with_shared_directory,
)
from antiphon_tools.launcher.named_files import check_named_files
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
    working_directory,
)
from antiphon_tools.launcher.ports import check_free
from antiphon_tools.launcher.preflight import check_checkpoint, check_devices, check_engines
from antiphon_tools.launcher.process import ServiceProcess, http_url
from antiphon_tools.launcher.runtime_directory import runtime_directory
from antiphon_tools.launcher.supervision import Backoff, OnExit

STARTUP_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 15.0
METRICS_LISTEN = "127.0.0.1:0"
STAGE_SERVER = "antiphon.runtime.server.main"
"""The module that all stages import before they load their model."""
ReachedAt = Callable[[str, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Running:
    """A deployment that is ready.

    The keys of `processes` are the roles of the stages, and "gateway". If a stage has several
    replicas, the second one is named "ROLE#2". A second gateway is named "gateway#2". A restarted
    process replaces the previous one. The endpoints are empty if there is no gateway. `ended` is
    set if the end of a process has ended the deployment.
    """

    model: Path
    http_url: str
    grpc_address: str
    processes: Mapping[str, ServiceProcess]
    startup_s: float
    ended: asyncio.Event

    async def wait(self) -> ServiceProcess:
        """Wait until the deployment ends by itself and return the service that ended it.

        If restarts are enabled, this never happens.
        """
        await self.ended.wait()
        # The gateways are the last processes. If the end of a stage is ignored, only the gateways
        # can end the deployment.
        return [each for each in self.processes.values() if each.exited.done()][-1]


class Launcher:
    """Starts a deployment on entry and stops it on exit.

        >>> async with Launcher(Path("models/antiphon-demo")) as running:
        ...     async with antiphon.AsyncClient(running.grpc_address) as client:
        ...         print((await client.generate("Hello!").collect()).text)

    `deployment` is a deployment or a checkpoint directory. A deployment without a model serves the
    embedded model. A stage that has addresses runs elsewhere and is not started. If `only` is set,
    the launcher only starts these stages and no gateway. `gateways` is the number of gateway
    processes, which share the ports and the limits of the deployment's gateway. If `metrics` is
    true, stages without `metrics_listen` use a free port of this host for their metrics. `report`
    is called with every `LaunchEvent`. `on_exit` determines what happens if a service ends after
    all of them are ready. `reached_at` is called with a stage process's name and listen address and
    returns the address that other processes should use, such as a proxy's address. If `fork` is
    true, processes are forked from a fork server if possible, so that they share their imports.
    Raises the errors of `plan.resolve`.

    Entering the context raises `Unavailable`, with the name of the stage, if a process ends before
    all of them are ready, and `DeadlineExceeded` after `startup_timeout_s`. Before any process
    starts, it also raises `Unavailable` if a port is in use, `InvalidArgument` if an engine or a
    device doesn't exist, and `FailedPrecondition` if a file that the deployment names can't be read
    or no temporary directory can be created. If there is an error or the entering task is
    cancelled, all processes are stopped.
    """

    def __init__(
        self,
        deployment: Deployment | Path,
        *,
        only: Sequence[str] = (),
        gateways: int = 1,
        metrics: bool = False,
        on_exit: OnExit = "leave",
        report: Report | None = None,
        root: Path | None = None,
        startup_timeout_s: float = STARTUP_TIMEOUT_S,
        stop_timeout_s: float | None = None,
        reached_at: ReachedAt | None = None,
        fork: bool = False,
    ) -> None:
        if isinstance(deployment, Path):
            deployment = Deployment(model=str(deployment))
        self._root = application_root(gateway=not only) if root is None else root
        resolved, self._pipeline = resolve(deployment, self._root)
        check_count(gateways)
        self._gateways = replica_names(GATEWAY, gateways)
        if gateways > 1:
            resolved = with_gateways(resolved, gateways)
        self._deployment = with_priorities(resolved, self._pipeline)
        self._roles = started_roles(resolved, self._pipeline, only)
        self._has_gateway = not only
        self._metrics = metrics
        self._report = report or _ignore
        self._startup_timeout_s = startup_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._on_exit = on_exit
        self._reached_at = reached_at
        self._fork = fork
        self._fork_server: ForkServer | None = None
        self._processes: dict[str, ServiceProcess] = {}
        self._one_ended = asyncio.Event()
        self._ended = asyncio.Event()
        self._all_were_ready = False
        self._stopping = asyncio.Event()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._files = contextlib.ExitStack()

    async def __aenter__(self) -> Running:
        check_free(listen_addresses(self._deployment, self._roles, gateway=self._has_gateway))
        check_named_files(
            self._deployment,
            self._roles,
            working_directory(self._root),
            gateway=self._has_gateway,
        )
        if self._roles:
            stages = {role: self._deployment.stage(role) for role in self._roles}
            check_engines(stages, self._pipeline)
            check_devices(stages)
            check_checkpoint(Path(self._deployment.model))
        try:
            if self._has_gateway and self._deployment.gateway.sharing.ports:
                self._deployment = with_reserved_ports(self._deployment, self._files)
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
        """The probe address of each process, or an empty string if it does not listen."""
        return [each.health_address for each in self._processes.values()]

    async def stop(self) -> None:
        """Stop the gateways first and then the stages, which are needed for requests in progress.

        Each process can take up to `stop_timeout_s` to stop, which defaults to its `drain_s` plus
        `STOP_TIMEOUT_S`. After that, it is killed. If this method is cancelled, the processes are
        killed immediately. Returns when all processes have ended.
        """
        self._stopping.set()
        stages = [name for name in self._processes if role_of(name) != GATEWAY]
        try:
            await self._stop([name for name in self._processes if role_of(name) == GATEWAY])
            await self._stop(stages)
        finally:
            self.kill()
            self._files.close()
        await asyncio.gather(*self._watches.values())

    async def _stop(self, names: Sequence[str]) -> None:
        """Request these processes to stop and kill the processes that do not stop in time."""
        for name in names:
            self._processes[name].terminate()
        watches = [self._watches[name] for name in names]
        if watches:
            await asyncio.wait(watches, timeout=self._stop_within_s(names))
        for name in names:
            self._processes[name].kill()

    def _stop_within_s(self, names: Sequence[str]) -> float:
        """Return how long these processes may take to stop."""
        if self._stop_timeout_s is not None:
            return self._stop_timeout_s
        gateway = self._deployment.gateway
        drains = [
            gateway.drain_s if role == GATEWAY else self._deployment.stage(role).drain_s
            for role in map(role_of, names)
        ]
        return max(drains) + STOP_TIMEOUT_S

    def kill(self) -> None:
        """Kill all processes immediately. They are not restarted."""
        self._stopping.set()
        for process in self._processes.values():
            process.kill()

    async def _start_unless_one_ends(self) -> Running:
        """Start all processes. Fails if a process ends or after the startup timeout."""
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
        """Start the stages and then the gateways. Returns when all of them are ready."""
        started_at = asyncio.get_running_loop().time()
        directory = self._files.enter_context(runtime_directory())
        config = _write(directory / "stages.yaml", self._deployment)
        if self._fork:
            self._fork_server = self._files.enter_context(self._new_fork_server())
        stages: dict[str, list[ServiceProcess]] = {}
        for role in self._roles:
            stage = self._deployment.stage(role)
            argv = ["antiphon_services", role, "--config", config, "--listen", stage.listen]
            if self._metrics and not stage.metrics_listen:
                argv += ["--metrics-listen", METRICS_LISTEN]
            names = replica_names(role, stage.replicas)
            # In a pod that only runs these stages, their processes have the name of the pod.
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
            if len(self._gateways) > 1:
                written = with_shared_directory(written, directory / "gateways")
            config = _write(directory / "deployment.yaml", written)
            gateways = [
                await self._spawn(name, "antiphon_gateway", "--config", config)
                for name in self._gateways
            ]
            endpoints = await gateways[0].listening
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
        """Return the address that other processes use to reach a stage."""
        address = reached_here((await process.listening).address)
        if self._reached_at is None:
            return address
        return await self._reached_at(process.name, address)

    async def _spawn(self, name: str, *argv: str) -> ServiceProcess:
        try:
            process = await self._start_process(name, argv)
        except OSError as error:
            raise Unavailable(
                f"{name} could not be started: {error.strerror or error}", stage=role_of(name)
            ) from error
        self._watches[name] = asyncio.create_task(self._watch(name, argv))
        return process

    async def _start_process(self, name: str, argv: Sequence[str]) -> ServiceProcess:
        service = self._service(name)
        process = await service.start(
            name,
            argv,
            root=self._root,
            report=self._report,
            fork_server=self._fork_server if self._can_fork(name) else None,
        )
        self._processes[name] = process
        if self._stopping.is_set():
            process.kill()
        return process

    def _service(self, name: str) -> type[ServiceProcess]:
        """Return the class that runs a service. Subclasses can override this."""
        return ServiceProcess

    def _can_fork(self, name: str) -> bool:
        """Return whether a service can run in a process that has imported the libraries of others.

        An accelerator or vLLM must not be used in a forked process.
        """
        role = role_of(name)
        if role == GATEWAY:
            return True
        stage = self._deployment.stage(role)
        return stage.engine != "vllm" and stage.device == "cpu"

    def _new_fork_server(self) -> ForkServer:
        """Return the server that forks the services. Subclasses can override this."""
        forked = [role for role in self._roles if self._can_fork(role)]
        loaders = [f"{self._pipeline.package}.{role}.load" for role in forked]
        return ForkServer(self._root, [STAGE_SERVER, *loaders] if forked else [])

    async def _watch(self, name: str, argv: Sequence[str]) -> None:
        """Handle the end of a service's process until the deployment stops."""
        backoff = Backoff()
        endpoints: tuple[str, ...] = ()
        while True:
            process = self._processes[name]
            await process.report_exit()
            self._one_ended.set()
            if self._stopping.is_set() or not self._all_were_ready:
                return
            if self._on_exit != "restart":
                if self._on_exit == "stop" or self._was_last_gateway(name):
                    self._ended.set()
                return
            endpoints = endpoints or process.endpoints
            pause_s = backoff.pause_s(process.ready_for_s)
            while not await self._restart(name, (*argv, *endpoints), pause_s):
                if self._stopping.is_set():
                    return
                pause_s = backoff.pause_s(0.0)

    async def _restart(self, name: str, argv: Sequence[str], after_s: float) -> bool:
        """Restart a service after a pause, unless the deployment stops first. Returns whether its
        process has started.
        """
        self._report(Restarting(name, after_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await self._stopping.wait()
        if self._stopping.is_set():
            return False
        try:
            await self._start_process(name, argv)
        except OSError as error:
            # The system may be short of memory, processes or file descriptors for a while.
            self._report(StartFailed(name, error.strerror or str(error)))
            return False
        return True

    def _was_last_gateway(self, name: str) -> bool:
        """Return whether this process was a gateway and no other gateway is left."""
        gateways = [each for each in self._processes if role_of(each) == GATEWAY]
        return name in gateways and all(self._processes[each].exited.done() for each in gateways)

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
    """Ignore an event. This is the default report function."""
