"""Lets a service that is the first process of a container (PID 1) be stopped while it starts.

The kernel ignores a signal to PID 1 unless PID 1 has a handler for it. The imports of a service
take a second or more, and its own handlers are installed after that. Without a handler, a container
that is stopped in the meantime would only end when it is killed. This module is imported before any
of the others, so it only uses small modules of the standard library.
"""

from __future__ import annotations

import os
import signal

FIRST = 1
KILLED = 128
"""The exit status of a process that a signal has ended is this plus the number of the signal."""


def end_on_early_stop() -> None:
    """If this process is PID 1, let SIGTERM end it, as it would end any other process. The exit
    status is then 143.

    A handler that is installed later replaces this one.
    """
    if os.getpid() == FIRST:
        # An exception could be caught by one of the modules that are being imported.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(KILLED + number))
