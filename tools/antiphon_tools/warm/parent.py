"""Forks Qwen3-Omni stages from a process that has loaded their imports.

`antiphon_tools.warm.launcher` starts this process with a socket for requests. A request is a
message that contains a `StageOrder` and three descriptors. They are used for the output of the
stage, for its announcements, and for its process ID followed by its exit status on a second line.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys

import msgspec

from antiphon_services.lm.reproducible import ask_for_equal_digits

ROLES = ("thinker", "talker", "code2wav")
PR_SET_PDEATHSIG = 1
MOST_BYTES = 1 << 17
DESCRIPTORS = 3


class StageOrder(msgspec.Struct):
    """A stage to be forked."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str


def prepare() -> None:
    """Import all modules without starting anything."""
    ask_for_equal_digits()
    for role in ROLES:
        importlib.import_module(f"antiphon_services.qwen3_omni.{role}.load")
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        sys.exit("an import has started threads, which a fork would lose")
    gc.collect()
    gc.freeze()


class Parent:
    """The forked stages that are still running."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        # Maps the descriptor that becomes readable when a stage ends to its process ID and to the
        # descriptor for its exit status.
        self._stages: dict[int, tuple[int, int]] = {}

    def serve(self) -> list[str] | None:
        """Fork stages as requested.

        In the forked stage, returns the arguments of the stage. In the parent process, returns None
        at the end.
        """
        while True:
            sources: list[int | socket.socket] = [self._orders, *self._stages]
            readable, _, _ = select.select(sources, [], [])
            for each in readable:
                if isinstance(each, int):
                    self._reap(each)
                    continue
                message, descriptors, _, _ = socket.recv_fds(each, MOST_BYTES, DESCRIPTORS)
                if not message:
                    return None
                order = msgspec.json.decode(message, type=StageOrder)
                if (arguments := self._fork(order, descriptors)) is not None:
                    return arguments

    def _fork(self, order: StageOrder, descriptors: list[int]) -> list[str] | None:
        printing, announcing, telling = descriptors
        parent = os.getpid()
        if number := os.fork():
            # The recipient of the process ID may send a signal to the process group immediately.
            os.setpgid(number, number)
            os.close(printing)
            os.close(announcing)
            self._stages[os.pidfd_open(number)] = (number, telling)
            _tell(telling, number)
            return None
        self._orders.close()
        for ended, (_, others) in self._stages.items():
            os.close(ended)
            os.close(others)
        os.close(telling)
        return _become(order, printing, announcing, parent)

    def _reap(self, ended: int) -> None:
        number, telling = self._stages.pop(ended)
        _, status = os.waitpid(number, 0)
        os.close(ended)
        _tell(telling, os.waitstatus_to_exitcode(status))
        os.close(telling)


def _tell(descriptor: int, number: int) -> None:
    # The recipient may no longer be listening.
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, b"%d\n" % number)


def _become(order: StageOrder, printing: int, announcing: int, parent: int) -> list[str]:
    """Set up the process as if the stage had been started normally, and return its arguments."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != parent:
        sys.exit("whoever ordered this stage is gone")
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (printing, 1), (printing, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(printing)
    os.chdir(order.directory)
    os.environ.clear()
    os.environ.update(order.environment)
    return [*order.arguments, "--announce-fd", str(announcing)]


def main() -> None:
    """Serve until the other end of the socket is closed. In a forked process, run the stage."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        arguments = Parent(orders).serve()
    if arguments is not None:
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
