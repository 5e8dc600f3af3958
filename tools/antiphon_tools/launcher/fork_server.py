"""Forks services from a process that has already imported their libraries.

`antiphon_tools.launcher.forking` starts this process with a socket for requests. A request is a
message that contains a `ForkOrder` and three descriptors: the output of the service, its
announcements, and a socket on which the service sends its process ID and waits for permission to
run.

A service must be a child of the launcher. This way, the launcher receives the service's exit
status, and the service ends with the launcher but not with this process. A fork creates a child of
this process. It therefore forks again and exits at once. The kernel assigns the second process to
the launcher, which is the subreaper at that time.

This process never starts a thread, because a fork would lose it, and never runs an operation of
torch or gRPC. If an import starts a thread or fails, the process ends, and the launcher starts all
services on its own.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

ENVIRONMENT = "antiphon_services.stage_environment"
"""The module whose `prepare_environment` has to be called before torch is imported."""
MOST_BYTES = 1 << 17
DESCRIPTORS = 3
PR_SET_PDEATHSIG = 1
# The default action of this signal is to ignore it.
PARENT_ENDED = signal.SIGURG
RECHECK_S = 1.0
# The positions of the start and the end of the command line in /proc/PID/stat, counted from the
# field after the name.
_ARG_START, _ARG_END = 45, 46


class ForkOrder(msgspec.Struct):
    """A service to be forked. `launcher` is the process ID of its parent.

    `command` is the command line that a started process would have, from which `/proc` and `ps`
    should identify the service. `arguments` are the module and its arguments.
    """

    launcher: int
    command: list[str]
    arguments: list[str]
    environment: dict[str, str]
    directory: str


def prepare(modules: Sequence[str]) -> None:
    """Import the modules that exist, without starting anything.

    Raises `SystemExit` if an import has started a thread.
    """
    # A collection would leave gaps between the imported objects. Objects that are created after a
    # fork would fill them, so that the pages could no longer be shared.
    gc.disable()
    # OpenBLAS starts its threads when numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in (ENVIRONMENT, *modules):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            # The service reports this when it starts.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
        else:
            if name == ENVIRONMENT:
                module.prepare_environment()
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("an import has started a thread")
    gc.freeze()


def serve(orders: socket.socket) -> list[str] | None:
    """Fork services as requested.

    In a service, returns its arguments. In this process, returns None after the launcher has closed
    the socket.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, MOST_BYTES, DESCRIPTORS)
        if not message:
            return None
        order = msgspec.json.decode(message, type=ForkOrder)
        between = os.fork()
        if between == 0:
            between = os.getpid()
            try:
                forked = os.fork()
            except OSError:
                os._exit(1)
            if forked:
                os._exit(0)
            orders.close()
            return _become(order, between, *descriptors)
        for each in descriptors:
            os.close(each)
        os.waitpid(between, 0)


def _become(order: ForkOrder, between: int, output: int, announce: int, reply: int) -> list[str]:
    """Set up the process as if the service had been started and return its arguments."""
    _end_with(order.launcher, between)
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    os.chdir(order.directory)
    os.environ.clear()
    os.environ.update(order.environment)
    arguments = [*order.arguments, "--announce-fd", str(announce)]
    _show([*order.command, *arguments])
    with socket.socket(fileno=reply) as launcher:
        try:
            launcher.sendall(b"%d" % os.getpid())
            wanted = launcher.recv(1)
        except OSError:
            wanted = b""
    if not wanted:
        os._exit(1)
    gc.enable()
    return arguments


def _end_with(launcher: int, between: int) -> None:
    """Wait until this process is a child of the launcher and let it end with the launcher."""
    prctl = ctypes.CDLL(None).prctl
    signal.pthread_sigmask(signal.SIG_BLOCK, {PARENT_ENDED})
    prctl(PR_SET_PDEATHSIG, PARENT_ENDED)
    while os.getppid() == between:
        signal.sigtimedwait({PARENT_ENDED}, RECHECK_S)
    failed = prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {PARENT_ENDED})
    if failed or os.getppid() != launcher:
        os._exit(1)


def _show(command: Sequence[str]) -> None:
    """Replace the command line that `/proc` and `ps` show.

    The kernel reads it from the memory of the process. The fork server was started with enough
    empty arguments to leave space.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    shown = b"".join(os.fsencode(each) + b"\0" for each in command)
    if 0 < len(shown) <= end - start:
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def main() -> None:
    """Serve until the launcher ends. In a forked process, run the service."""
    modules = sys.argv[2].split(",") if sys.argv[2] else []
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        prepare(modules)
        arguments = serve(orders)
    if arguments is not None:
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
