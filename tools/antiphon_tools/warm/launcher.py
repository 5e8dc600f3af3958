"""Launches services whose stages are forked from a process that has already imported their
libraries.

It takes seven seconds of CPU time to import torch and transformers, and less than a second to start
the rest of a stage. A forked stage has the same arguments, environment and descriptors as one that
is started normally. The normal start is still covered by tests that don't use this module
(`test_demo_run`, `test_failed_start`, `test_restart`, and the fixtures of other model families).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.plan import application_root, role_of
from antiphon_tools.launcher.process import ServiceProcess
from antiphon_tools.warm.parent import StageOrder

PROGRAMS = ("antiphon_services", "tests.integration.stoppable_stage", "benchmarks.gpu.stage")


class WarmParent:
    """The process from which stages are forked. It ends together with the current process."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._path = os.environ.get("PYTHONPATH")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "antiphon_tools.warm.parent", str(theirs.fileno())],
                cwd=application_root(),
                # If imports started any threads, they would be lost in a fork.
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        atexit.register(self.close)

    def can(self, arguments: Sequence[str], directory: Path) -> bool:
        """Return whether the process has imported everything that these arguments require."""
        return (
            arguments[0] in PROGRAMS
            and directory == application_root()
            and os.environ.get("PYTHONPATH") == self._path
        )

    def order(self, order: StageOrder, *descriptors: int) -> None:
        """Ask the process to fork a stage, which inherits the descriptors."""
        socket.send_fds(self._orders, [msgspec.json.encode(order)], descriptors)

    def close(self) -> None:
        """Stop the process."""
        self._orders.close()
        self._process.wait()


warm_parent = cache(WarmParent)


class WarmProcess(ServiceProcess):
    """A service that is forked if possible."""

    @classmethod
    async def _run(
        cls,
        made: Callable[[], ServiceProcess],
        arguments: Sequence[str],
        announce_fd: int,
        root: Path,
    ) -> ServiceProcess:
        if not warm_parent().can(arguments, root):
            return await super()._run(made, arguments, announce_fd, root)
        printed, printing = os.pipe()
        told, telling = os.pipe()
        order = StageOrder(list(arguments), dict(os.environ), str(root))
        warm_parent().order(order, printing, announce_fd, telling)
        os.close(printing)
        os.close(telling)
        loop = asyncio.get_running_loop()
        life = asyncio.StreamReader()
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(life), os.fdopen(told, "rb", buffering=0)
        )
        line = await life.readline()
        if not line:
            raise RuntimeError(
                "the process that forks stages has ended; see its output for the reason"
            )
        number = int(line)
        service = made()
        output, _ = await loop.connect_read_pipe(
            lambda: _ForkOutput(service), os.fdopen(printed, "rb", buffering=0)
        )
        service.connection_made(_Fork(service, number, life, output))
        return service


class _Fork(asyncio.SubprocessTransport):
    """A forked process, with the same interface as a process that asyncio has started."""

    def __init__(
        self,
        service: ServiceProcess,
        number: int,
        life: asyncio.StreamReader,
        output: asyncio.BaseTransport,
    ) -> None:
        super().__init__()
        self._number, self._output = number, output
        self._status: int | None = None
        self._watch = asyncio.create_task(self._wait(service, life))

    async def _wait(self, service: ServiceProcess, life: asyncio.StreamReader) -> None:
        self._status = int(await life.read())
        service.process_exited()

    def get_pid(self) -> int:
        return self._number

    def get_returncode(self) -> int | None:
        return self._status

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._number, signal.SIGTERM)

    def close(self) -> None:
        self._output.close()


class _ForkOutput(asyncio.Protocol):
    """Passes the output of the process to its service."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service

    def data_received(self, data: bytes) -> None:
        self._service.pipe_data_received(1, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.pipe_connection_lost(1, exc)


class WarmLauncher(Launcher):
    """Forks stages from a warm parent process, except for stages that use vLLM. `engine_nice` is
    ignored.

    If other work runs at the same time, such as tests, an engine with a lower priority
    (`with_priorities`) would only get a tenth of a core.
    """

    def __init__(self, deployment: Path | Deployment, **options: Any) -> None:
        super().__init__(deployment, **options)
        self._deployment = on_equal_terms(self._deployment)

    def _service(self, name: str) -> type[ServiceProcess]:
        stages: Mapping[str, StageConfig] = self._deployment.stages
        stage = stages.get(role_of(name))
        return ServiceProcess if stage and stage.engine == "vllm" else WarmProcess


def on_equal_terms(deployment: Deployment) -> Deployment:
    """Return the deployment with the same priority for all engines."""
    stages = {role: replace(stage, engine_nice=0) for role, stage in deployment.stages.items()}
    return replace(deployment, stages=stages)
