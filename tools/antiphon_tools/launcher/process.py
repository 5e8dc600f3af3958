"""Runs a service as a child process.

A child process writes JSON lines to the pipe given by `--announce-fd`. For example, it writes
`{"event": "listening", "address": "127.0.0.1:4711"}` and, after its model has been loaded,
`{"event": "ready"}`.

A child process must not outlive the launcher, even if the launcher is killed with SIGKILL. On
Linux, the kernel ensures this (PR_SET_PDEATHSIG). On other systems, each child process has a
watcher process in its group, which reads a pipe. The launcher holds the other end of the pipe. When
the launcher ends, the pipe ends, and the watcher kills the group.

The setting or the watcher has to be created in the child process. A small program does this and
then executes the service, because code that runs between fork and exec (`preexec_fn`) can deadlock
in a process with threads, such as the gRPC threads of the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from antiphon.errors import Unavailable
from antiphon.transport.listening import reached_here
from antiphon_tools.launcher.events import (
    Exited,
    Listening,
    Loaded,
    Output,
    ProcessStarted,
    Report,
    describe_status,
)
from antiphon_tools.launcher.forking import ForkServer
from antiphon_tools.launcher.lines import LineBuffer
from antiphon_tools.launcher.plan import (
    PYTHON,
    role_of,
    service_environment,
    working_directory,
)

TAIL_LINES = 40
DRAIN_S = 1.0

Announced = TypeVar("Announced")

_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG) failed")
if os.getppid() != int(sys.argv[1]):
    sys.exit("the launcher is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
_KILLED_BY_WATCHER = """
import os, signal, sys
lifeline, announce = int(sys.argv[1]), int(sys.argv[2])
if os.fork() == 0:
    os.close(announce)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)
os.close(lifeline)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Announcement(msgspec.Struct, frozen=True):
    """A line from the announcement pipe. A stage has an `address`, whereas the gateway has two
    endpoints.

    If a stage has other ports, `metrics` and `health` are their addresses.
    """

    event: str
    address: str = ""
    metrics: str = ""
    health: str = ""
    http: str = ""
    grpc: str = ""


_decoder = msgspec.json.Decoder(Announcement)


class ServiceProcess(asyncio.SubprocessProtocol):
    """A running service. Use `start` to create one.

    `listening` and `ready` complete when the service makes the corresponding announcement, and
    `exited` completes when its process has ended. None of these futures ever raises an exception.
    """

    def __init__(self, name: str, report: Report) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.listening: asyncio.Future[Announcement] = loop.create_future()
        self.ready: asyncio.Future[float] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._report = report
        self._lifeline: Lifeline | None = None
        self._is_abandoned = False
        self._lines = LineBuffer()
        self._drained = asyncio.Event()
        self._started_at = loop.time()
        self._ready_at = self._exited_at = 0.0

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        root: Path,
        report: Report,
        fork_server: ForkServer | None = None,
    ) -> ServiceProcess:
        """Start `python -m <argv>` in `root`, in a process group of its own. If there is a
        `fork_server`, it forks the process if possible.

        Pressing Ctrl-C in a terminal doesn't affect the process, because only its owner should stop
        it. The process stays in the launcher's session because Linux's autogroup splits CPU time
        among sessions. If each process had its own session, threads that wait for a message would
        be scheduled after the engines of other stages.
        """
        loop = asyncio.get_running_loop()
        source_fd, sink_fd = os.pipe()
        source = os.fdopen(source_fd, "rb", buffering=0)
        try:
            service: ServiceProcess | None = None
            if fork_server is not None and fork_server.root == root:
                service = await fork_server.start(lambda: cls(name, report), argv, sink_fd)
            if service is None:
                service = await cls._run(lambda: cls(name, report), argv, sink_fd, root)
        except BaseException:
            source.close()
            raise
        finally:
            os.close(sink_fd)
        try:
            await loop.connect_read_pipe(lambda: _AnnouncePipe(service), source)
        except BaseException:
            service.kill()
            raise
        return service

    @classmethod
    async def _run(
        cls, made: Callable[[], ServiceProcess], argv: Sequence[str], announce_fd: int, root: Path
    ) -> ServiceProcess:
        """Start the process and return its service.

        When this returns, asyncio may already have called methods of the service as a protocol.
        Raises `OSError` if the process can't be started or its end can't be observed. In the second
        case, the process is killed.
        """
        created = made()
        python = [*PYTHON, "-m", *argv, "--announce-fd", str(announce_fd)]
        lifeline = None if kernel_ends_children() else Lifeline()
        read_ends = () if lifeline is None else (lifeline.read_end,)
        try:
            _, service = await asyncio.get_running_loop().subprocess_exec(
                lambda: created,
                *_bound_to_this_process(python, lifeline, announce_fd),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(announce_fd, *read_ends),
                process_group=0,
                cwd=working_directory(root),
                env=service_environment(root),
            )
        except BaseException as error:
            created._is_abandoned = True
            if lifeline is not None:
                lifeline.close()
            if isinstance(error, RuntimeError):
                # asyncio couldn't start the thread that waits for the process.
                raise OSError(errno.EAGAIN, str(error)) from error
            raise
        finally:
            for each in read_ends:
                os.close(each)
        service._lifeline = lifeline
        return service

    @property
    def pid(self) -> int:
        """The process ID of the service itself."""
        return self._pid

    @property
    def address(self) -> str:
        """The gRPC target, or an empty string if the service does not listen yet."""
        if not self.listening.done():
            return ""
        announcement = self.listening.result()
        return announcement.address or announcement.grpc

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics, or an empty string if there are none or the service does not
        listen yet.
        """
        if not self.listening.done():
            return ""
        announcement = self.listening.result()
        endpoint = announcement.metrics or announcement.http
        return f"{http_url(endpoint)}/metrics" if endpoint else ""

    @property
    def health_address(self) -> str:
        """The probe address, or an empty string if the service does not listen or has ended."""
        if not self.listening.done() or self.exited.done():
            return ""
        return self.listening.result().health

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The options that make a restarted process listen at the same addresses."""
        if not self.listening.done():
            return ()
        told = self.listening.result()
        given = {
            "--listen": told.address,
            "--metrics-listen": told.metrics,
            "--health-listen": told.health,
            "--http-listen": told.http,
            "--grpc-listen": told.grpc,
        }
        return tuple(part for option in given.items() if option[1] for part in option)

    @property
    def ready_for_s(self) -> float:
        """The number of seconds for which the service was ready before it ended. It is 0 if the
        service was never ready or is still running.
        """
        return max(0.0, self._exited_at - self._ready_at) if self.ready.done() else 0.0

    @property
    def reason(self) -> str:
        """The sentence with which the service explained its exit, or an empty string if it didn't
        print one.
        """
        start = f"{role_of(self.name)}: "
        said = (line for line in reversed(self.tail) if line.startswith(start))
        return next(said, "").removeprefix(start)

    async def wait(self) -> int:
        """Wait for the process to end and return its exit status."""
        return await asyncio.shield(self.exited)

    async def wait_listening(self) -> Announcement:
        """Wait until the service listens. Raises `Unavailable` if its process ends first."""
        return await self._before_exit(self.listening)

    async def wait_ready(self) -> float:
        """Wait until the service is ready and return the seconds since its start.

        Raises `Unavailable` if its process ends first.
        """
        return await self._before_exit(self.ready)

    async def _before_exit(self, announced: asyncio.Future[Announced]) -> Announced:
        await asyncio.wait((announced, self.exited), return_when=asyncio.FIRST_COMPLETED)
        if announced.done():
            return announced.result()
        await self._printed_all()
        ending = self.ending(" before it was ready")
        raise Unavailable(f"{self.name} {ending}", stage=role_of(self.name))

    def ending(self, when: str = "") -> str:
        """Describe how the process ended. If it didn't explain this itself, include its last lines
        of output.
        """
        status = f"{describe_status(self.exited.result())}{when}"
        if self.reason:
            return f"{status}: {self.reason}"
        said = "".join(f"\n  {line}" for line in self.tail)
        return f"{status}; its output was:{said or ' nothing'}"

    async def report_exit(self) -> None:
        """Wait for the process to end and report this after its last line of output.

        Processes started by the service have `DRAIN_S` seconds to close the output before they are
        killed.
        """
        status = await self.wait()
        await self._printed_all()
        self._signal_group(signal.SIGKILL)
        if self._lifeline is not None:
            self._lifeline.close()
        self._transport.close()
        self._report(Exited(self.name, status))

    async def _printed_all(self) -> None:
        """Wait for the last line of output or until `DRAIN_S` has passed.

        A process that the service has started may keep the output open.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._drained.wait()

    def terminate(self) -> None:
        """Request the process to stop."""
        if not self.exited.done():
            self._transport.terminate()

    def kill(self) -> None:
        """Kill the process and all processes that it has started."""
        if not self.exited.done():
            self._signal_group(signal.SIGKILL)

    def announced(self, line: str) -> None:
        """Process a line of the announcement pipe. An invalid line ends the service."""
        try:
            announcement = _decoder.decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            self._printed(f"announcement {line!r}: {error}")
            self.kill()
            return
        if announcement.event == "listening" and not self.listening.done():
            self.listening.set_result(announcement)
            self._report(Listening(self.name, self.address, announcement.metrics))
        elif announcement.event == "ready" and not self.ready.done():
            self._ready_at = asyncio.get_running_loop().time()
            seconds = self._ready_at - self._started_at
            self.ready.set_result(seconds)
            self._report(Loaded(self.name, seconds))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record that the process is running, or kill it if nothing observes its end."""
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._pid = self._transport.get_pid()
        if self._is_abandoned:
            self._signal_group(signal.SIGKILL)
            cast("subprocess.Popen[bytes]", self._transport.get_extra_info("subprocess")).wait()
            self._transport.close()
            return
        self._report(ProcessStarted(self.name, self._pid))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Process output of the service."""
        for line in self._lines.feed(data):
            self._printed(line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Process the end of the output."""
        for line in self._lines.flush():
            self._printed(line)
        self._drained.set()

    def process_exited(self) -> None:
        """Record the end of the process and request the processes that it has started to stop."""
        # Python's resource tracker ignores this signal. It ends on its own after cleaning up what
        # the processes have left behind, which a kill would prevent.
        self._signal_group(signal.SIGTERM)
        self._exited_at = asyncio.get_running_loop().time()
        self.exited.set_result(cast(int, self._transport.get_returncode()))

    def _printed(self, line: str) -> None:
        self.tail.append(line)
        self._report(Output(self.name, line))

    def _signal_group(self, number: signal.Signals) -> None:
        # On macOS, a group of which only zombies are left raises PermissionError.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)


def http_url(address: str, *, secure: bool = False) -> str:
    """Return the URL for an address. If it is already a URL, it is not changed."""
    if "://" in address:
        return address
    return f"http{'s' if secure else ''}://{reached_here(address)}"


class _AnnouncePipe(asyncio.Protocol):
    """Passes each line of the announcement pipe to its service."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._lines = LineBuffer()

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._service.announced(line)


class Lifeline:
    """A pipe that ends when this process ends or when `close` is called."""

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        self._closed = False

    def close(self) -> None:
        """Close the write end. This may be called several times. The caller closes the read end."""
        if not self._closed:
            self._closed = True
            os.close(self._write_end)


def kernel_ends_children() -> bool:
    """Return whether the kernel can end a process together with its parent. Only Linux can."""
    return hasattr(ctypes.CDLL(None), "prctl")


def _bound_to_this_process(
    command: Sequence[str], lifeline: Lifeline | None, announce_fd: int
) -> Sequence[str]:
    """Wrap the command so that it ends together with this process."""
    bare = [sys.executable, "-I", "-S", "-c"]
    if lifeline is None:
        return [*bare, _DIE_WITH_PARENT, str(os.getpid()), *command]
    return [*bare, _KILLED_BY_WATCHER, str(lifeline.read_end), str(announce_fd), *command]
