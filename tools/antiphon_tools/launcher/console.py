"""Prints the progress of a launcher."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from antiphon_tools.launcher.events import (
    Exited,
    LaunchEvent,
    Listening,
    Loaded,
    Output,
    ProcessStarted,
    Restarting,
    StartFailed,
    describe_status,
)

_COLOURS = (36, 33, 35, 32, 34, 31)
_WIDTH = 9


class Console:
    """Prints launcher events. Each line starts with the name of the service.

    On a terminal, names are colored. If `output` is false, the output of services is not printed.
    If `stream` can't be written to, because its reader has ended or its disk is full, the line is
    lost, and a warning is printed to the standard error output once. If `stream` is None, which
    Python sets `sys.stdout` to if the descriptor is closed, nothing is printed.
    """

    def __init__(self, stream: TextIO | None, *, output: bool = True) -> None:
        self._stream = stream
        self._output = output
        self._has_lost_lines = False
        terminal = stream is not None and stream.isatty()
        self._colours: dict[str, int] | None = {} if terminal else None

    def __call__(self, event: LaunchEvent) -> None:
        """Print an event."""
        text = _describe(event)
        if self._output or not isinstance(event, Output):
            self.say(f"{self._prefix(event.service)} {text}")

    def say(self, line: str = "") -> None:
        """Print a line from the launcher itself."""
        if self._stream is None:
            return
        try:
            print(line, file=self._stream, flush=True)
        except OSError as error:
            self._warn(error)

    def close(self) -> None:
        """Discard what could not be printed. Otherwise, Python would try again when it exits, and
        exit with status 120.
        """
        if self._stream is None:
            return
        try:
            self._stream.flush()
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)

    def _warn(self, error: OSError) -> None:
        if not self._has_lost_lines:
            self._has_lost_lines = True
            # The standard error output may have the same problem.
            with contextlib.suppress(OSError):
                print(
                    f"warning: can't print to the standard output: {error.strerror}; the services "
                    "keep running",
                    file=sys.stderr,
                    flush=True,
                )

    def _prefix(self, service: str) -> str:
        name = f"{service:<{_WIDTH}}|"
        if self._colours is None:
            return name
        colour = self._colours.setdefault(service, _COLOURS[len(self._colours) % len(_COLOURS)])
        return f"\x1b[{colour}m{name}\x1b[0m"


def _describe(event: LaunchEvent) -> str:
    match event:
        case ProcessStarted():
            return f"started, process {event.pid}"
        case Listening():
            metrics = f", metrics on {event.metrics}" if event.metrics else ""
            return f"listens on {event.address}{metrics}, loading"
        case Loaded():
            return f"ready after {event.seconds:.1f} s"
        case Exited():
            return describe_status(event.status)
        case Restarting():
            return f"restarting in {event.after_s:g} s"
        case StartFailed():
            return f"could not be started: {event.reason}"
        case Output():
            return event.line
