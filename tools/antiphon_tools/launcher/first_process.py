"""Lets a command run as the first process of a container (PID 1).

The kernel makes PID 1 the parent of every process whose own parent has ended, such as a worker of a
service that was killed. If PID 1 doesn't wait for these processes, they remain as zombies and use
up process IDs. A launcher only waits for the services that it has started. As PID 1, it therefore
forks. The child is the launcher, and the parent only waits for processes and forwards signals.

The kernel also ignores a signal to PID 1 unless PID 1 has a handler for it. A container that is
stopped before the fork would therefore only end when it is killed. For this reason, `antiphon
serve` forks before the imports that take the most time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Collection

from antiphon.early_stop import FIRST, KILLED

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that stop a launcher."""


def fork_if_first(signals: Collection[signal.Signals]) -> None:
    """If this process is PID 1, return only in a child. This process then forwards `signals` to the
    child, waits for all processes, and exits with the child's exit status.

    Threads that libraries start when they are imported may be running. They don't exist in the
    child.
    """
    if os.getpid() != FIRST:
        return
    watched = {*signals, signal.SIGCHLD}
    # Python writes the number of each signal to this pipe, regardless of which thread receives it.
    # A signal that arrives just before the pipe is read is therefore not missed.
    received, written = os.pipe()
    os.set_blocking(written, False)
    previous_fd = signal.set_wakeup_fd(written)
    previous = {each: signal.signal(each, lambda *_: None) for each in watched}
    # The child must not pass its signals to the pipe.
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        # Otherwise, Ctrl-C would reach the child twice.
        os.setpgid(0, 0)
        signal.set_wakeup_fd(previous_fd)
        for each, handler in previous.items():
            signal.signal(each, handler)
        os.close(received)
        os.close(written)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        return
    signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
    while True:
        for number in os.read(received, 4096):
            if number == signal.SIGCHLD:
                _reap_all(child)
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)


def open_standard_streams() -> None:
    """Open the null device in place of a standard stream whose descriptor is closed.

    Otherwise, pipes and sockets that this process opens would get these descriptors, which a
    service replaces by its own standard streams.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The system assigns the lowest number that is free.
            os.open(os.devnull, os.O_RDWR)


def _reap_all(child: int) -> None:
    """Wait for all processes that have ended. If `child` is one of them, exit with its status."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else KILLED - code)
