"""Lets a command run as the first process of a container (PID 1).

The kernel makes PID 1 the parent of every process whose own parent has ended, such as a worker of a
service that was killed. If PID 1 doesn't wait for these processes, they remain as zombies and use
up process IDs. A launcher only waits for the services that it has started. As PID 1, it therefore
forks. The child is the launcher, and the parent only waits for processes and forwards signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Collection
from types import FrameType

FIRST = 1
KILLED = 128
"""The exit status of a process that a signal has ended is this plus the number of the signal."""


def fork_if_first(signals: Collection[signal.Signals]) -> None:
    """If this process is PID 1, return only in a child. This process then forwards `signals` to the
    child, waits for all processes, and exits with the child's exit status.

    Must be called before any thread is started.
    """
    if os.getpid() != FIRST:
        return
    # A signal that arrives before the handlers exist waits until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        # Otherwise, Ctrl-C would reach the child twice.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return

    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for each in signals:
        signal.signal(each, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else KILLED - code)
