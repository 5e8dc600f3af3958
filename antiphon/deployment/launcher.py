"""Runs a whole deployment on this machine: every stage and the gateway as its own process.

The order: all stages start at once and tell where they listen, before they load;
then the gateway starts with a deployment file that has their addresses; the
deployment is ready when all of them are. Until then the end of any process ends
all of them; afterwards the others go on, and the gateway refuses what it cannot do.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from antiphon.deployment.events import LaunchEvent, Report, describe_status
from antiphon.deployment.plan import (
    GATEWAY,
    application_root,
    resolve,
    with_addresses,
    with_priorities,
)
from antiphon.deployment.process import ServiceProcess, http_url
from antiphon.deployment.schema import Deployment, dump_deployment
from antiphon.errors import DeadlineExceeded, Unavailable

STARTUP_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 15.0
METRICS_LISTEN = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Running:
    """A deployment that is ready. `processes` are by role, and "gateway"."""

    model: Path
    http_url: str
    grpc_address: str
    processes: Mapping[str, ServiceProcess]
    startup_s: float

    async def wait(self) -> int:
        """Wait until the gateway ends by itself; its exit status."""
        return await self.processes[GATEWAY].wait()


class Launcher:
    """Starts a deployment on entry and stops it on exit.

    >>> async with Launcher(Path("models/qwen3-omni")) as running:
    ...     async with antiphon.AsyncClient(running.grpc_address) as client:
    ...         print((await client.generate("Hello!").collect()).text)

    Takes a deployment or a checkpoint directory; a deployment without a model serves
    the embedded one. A stage that has addresses already runs elsewhere and is not
    started. With `metrics` a stage without `metrics_listen` gets a free port of this
    host's for it. `report` is called with every `LaunchEvent`. Raises what `plan.resolve`
    raises. Entering raises `Unavailable`, naming the stage, when a process ends before
    all are ready, and `DeadlineExceeded` after `startup_timeout_s`; nothing is left
    running then, nor when the entering task is cancelled.
    """

    def __init__(
        self,
        deployment: Deployment | Path,
        *,
        metrics: bool = False,
        report: Report | None = None,
        root: Path | None = None,
        startup_timeout_s: float = STARTUP_TIMEOUT_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        if isinstance(deployment, Path):
            deployment = Deployment(model=str(deployment))
        self._root = application_root() if root is None else root
        resolved, self._pipeline = resolve(deployment, self._root)
        self._deployment = with_priorities(resolved, self._pipeline)
        self._metrics = metrics
        self._report = report or _ignore
        self._startup_timeout_s = startup_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._processes: dict[str, ServiceProcess] = {}
        self._one_ended = asyncio.Event()
        self._watches: set[asyncio.Task[None]] = set()
        self._files = contextlib.ExitStack()

    async def __aenter__(self) -> Running:
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

    async def stop(self) -> None:
        """Ask all processes to stop, and kill what is left after `stop_timeout_s`.

        If this is cancelled, it kills at once. Returns when all have ended.
        """
        for process in self._processes.values():
            process.terminate()
        try:
            if self._watches:
                await asyncio.wait(self._watches, timeout=self._stop_timeout_s)
        finally:
            self.kill()
            self._files.close()
        await asyncio.gather(*self._watches)

    def kill(self) -> None:
        """End all processes at once."""
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
        return start.result()

    async def _start(self) -> Running:
        """Start the stages, then the gateway; done when all are ready."""
        started_at = asyncio.get_running_loop().time()
        directory = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-")))
        config = _write(directory / "stages.yaml", self._deployment)
        stages = {}
        for role in self._pipeline.roles:
            stage = self._deployment.stage(role)
            if not stage.addresses:
                argv = [f"services.{role}", "--config", config, "--listen", stage.listen]
                if self._metrics and not stage.metrics_listen:
                    argv += ["--metrics-listen", METRICS_LISTEN]
                stages[role] = await self._spawn(role, *argv)
        addresses = {role: (await stage.listening).address for role, stage in stages.items()}
        config = _write(directory / "deployment.yaml", with_addresses(self._deployment, addresses))
        gateway = await self._spawn(GATEWAY, GATEWAY, "--config", config)
        doors = await gateway.listening
        for process in self._processes.values():
            await process.ready
        return Running(
            model=Path(self._deployment.model),
            http_url=http_url(doors.http),
            grpc_address=doors.grpc,
            processes=dict(self._processes),
            startup_s=asyncio.get_running_loop().time() - started_at,
        )

    async def _spawn(self, name: str, *argv: str) -> ServiceProcess:
        process = await ServiceProcess.start(name, argv, root=self._root, report=self._report)
        self._processes[name] = process
        self._watches.add(asyncio.create_task(self._watch(process)))
        return process

    async def _watch(self, process: ServiceProcess) -> None:
        """Report the end of a process when it comes."""
        await process.report_exit()
        self._one_ended.set()

    def _ended_early(self) -> Unavailable:
        process = next(each for each in self._processes.values() if each.exited.done())
        said = "".join(f"\n  {line}" for line in process.tail)
        status = describe_status(process.exited.result())
        return Unavailable(
            f"{process.name} {status} before everything was ready; it said:{said or ' nothing'}",
            stage=process.name,
        )

    def _too_slow(self) -> DeadlineExceeded:
        waiting = [name for name, each in self._processes.items() if not each.ready.done()]
        return DeadlineExceeded(
            f"not ready after {self._startup_timeout_s:g} s: {', '.join(waiting)}",
            stage=waiting[0] if waiting else "",
        )


def _write(path: Path, deployment: Deployment) -> str:
    path.write_bytes(dump_deployment(deployment))
    return str(path)


def _ignore(event: LaunchEvent) -> None:
    """The report of a launcher that nobody listens to."""
