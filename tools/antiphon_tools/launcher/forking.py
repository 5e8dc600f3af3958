"""Starts services by forking them from a fork server, which has already imported their libraries.

A stage needs about 2 s of CPU time and 100 MB of memory for its imports. Forked stages share both.
Apart from this, a forked service behaves like one that was started normally. It is a child of this
process and ends with it. It has its own process group, environment, output and command line. The
end of the fork server doesn't affect it.

A service is only forked if this is safe and equivalent. `ForkServer.start` returns None if it is
not, in which case the caller starts the service as a new process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from antiphon_tools.launcher.fork_server import ForkOrder
from antiphon_tools.launcher.plan import PYTHON, service_environment, working_directory

PROGRAM = "antiphon_tools.launcher.fork_server"
# Importing torch from a slow disk can take this long. Afterwards, the service is started normally.
FORK_TIMEOUT_S = 120.0
# The space for the command line of a service, in bytes.
COMMAND_BYTES = 4096
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
UNKNOWN_STATUS = 255
READ_AT_IMPORT = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "ONEDNN_",
    "DNNL_",
    "TORCH",
    "PYTORCH",
    "ATEN_",
    "CUDA_",
    "NVIDIA_",
    "TRITON_",
    "HF_",
    "TRANSFORMERS_",
    "GRPC_",
    "PROTOCOL_BUFFERS_",
    "HOME",
)
"""Prefixes of environment variables that libraries read when they are imported. A service whose
value differs from that of the fork server can't be forked.
"""

Service = TypeVar("Service", bound=asyncio.SubprocessProtocol)


class ForkServer:
    """Forks services in `root`. Its process starts with the first service, imports `modules`, and
    ends with this process or when `close` is called.

    `environment` contains additional variables for the imports, whose values forked services don't
    see.
    """

    def __init__(
        self, root: Path, modules: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.root = root
        self._modules = tuple(dict.fromkeys(modules))
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._read_at_import: dict[str, str] = {}

    async def start(
        self, made: Callable[[], Service], argv: Sequence[str], announce_fd: int
    ) -> Service | None:
        """Fork a process that runs `python -m <argv>` and return its service.

        `made` creates the service, which is the protocol of the process. Returns None if the
        service has to be started normally. Raises `OSError` if the process can't be observed, in
        which case it is killed.
        """
        if not has_process_handles():
            return None
        environment = service_environment(self.root)
        if self._process is None:
            self._open(environment)
        if self._orders is None or _read_at_import(environment) != self._read_at_import:
            return None
        directory = str(working_directory(self.root))
        try:
            order = msgspec.json.encode(
                ForkOrder(os.getpid(), [*PYTHON, "-m"], list(argv), environment, directory)
            )
        except UnicodeEncodeError:
            # An environment variable or an argument isn't valid UTF-8.
            return None
        own, theirs = socket.socketpair()
        # Until the process receives the last byte, it ends if `own` is closed.
        with own, theirs, contextlib.ExitStack() as unless_forked:
            own.setblocking(False)
            output, printed = os.pipe()
            source = os.fdopen(output, "rb", buffering=0)
            unless_forked.callback(source.close)
            with _adopting():
                try:
                    with theirs:
                        self._send(order, printed, announce_fd, theirs.fileno())
                finally:
                    os.close(printed)
                pid = await self._process_id(own)
            if pid is None:
                self.close()
                return None
            unless_forked.callback(_end, pid)
            service = made()
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: _Output(service), source
            )
            unless_forked.callback(transport.close)
            forked = _Forked(service, pid, transport)
            unless_forked.pop_all()
            service.connection_made(forked)
            # The process may have been killed. Its handle reports that.
            with contextlib.suppress(OSError):
                own.send(b"\n")
        return service

    def _send(self, order: bytes, *descriptors: int) -> None:
        """Send an order. If the server has ended, the descriptors are closed without an answer."""
        assert self._orders is not None
        with contextlib.suppress(OSError):
            socket.send_fds(self._orders, [order], descriptors)

    async def _process_id(self, own: socket.socket) -> int | None:
        """Receive the process ID or return None if there is no answer."""
        try:
            async with asyncio.timeout(FORK_TIMEOUT_S):
                return int(await asyncio.get_running_loop().sock_recv(own, 32))
        except (TimeoutError, OSError, ValueError):
            return None

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, environment: Mapping[str, str]) -> None:
        """Start the process of the server."""
        self._read_at_import = _read_at_import(environment)
        orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        orders.setblocking(False)
        arguments = [str(theirs.fileno()), ",".join(self._modules)]
        with theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(orders.close)
            self._process = subprocess.Popen(
                [*PYTHON, "-m", PROGRAM, *arguments, *[""] * COMMAND_BYTES],
                cwd=working_directory(self.root),
                env={**environment, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
            unless_started.pop_all()
        self._orders = orders

    def close(self) -> None:
        """End the process. Services that it has forked keep running, and no more can be forked."""
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _end(pid: int) -> None:
    """Kill a child of this process that nothing else waits for, and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class _Forked(asyncio.SubprocessTransport):
    """A forked process, with the same interface as a process that asyncio has started."""

    def __init__(
        self, service: asyncio.SubprocessProtocol, pid: int, output: asyncio.BaseTransport
    ) -> None:
        super().__init__()
        self._service, self._pid, self._output = service, pid, output
        self._status: int | None = None
        self._handle = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._handle, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        try:
            _, status = os.waitpid(self._pid, 0)
            self._status = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            self._status = UNKNOWN_STATUS
        self._service.process_exited()

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._status

    def terminate(self) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGTERM)

    def close(self) -> None:
        self._output.close()


class _Output(asyncio.Protocol):
    """Passes the output of the process to its service."""

    def __init__(self, service: asyncio.SubprocessProtocol) -> None:
        self._service = service

    def data_received(self, data: bytes) -> None:
        self._service.pipe_data_received(1, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.pipe_connection_lost(1, exc)


def has_process_handles() -> bool:
    """Return whether this system has handles of processes (pidfd), which only Linux provides."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        # Old kernels don't support this call, and sandboxes may reject it.
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}


_adoptions = 0


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Let this process become the parent of processes that its children leave behind (Linux)."""
    global _adoptions
    prctl = ctypes.CDLL(None).prctl
    already = ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(already))
    if already.value and not _adoptions:
        yield
        return
    _adoptions += 1
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _adoptions -= 1
        if not _adoptions:
            prctl(PR_SET_CHILD_SUBREAPER, 0)
