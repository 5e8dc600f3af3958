"""Prints the progress of a launcher."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import TextIO

from antiphon_tools.launcher.background_output import BackgroundOutput
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
LAST_LINES_S = 1.0
"""How many seconds a stalled reader has to read the last lines."""


class Console:
    """Prints launcher events. Each line starts with the name of the service.

    On a terminal, names are colored. If `output` is false, the output of services is not printed.
    If `stream` can't be written to, because its reader has ended or its disk is full, the line is
    lost, and a warning is printed to the standard error output once. If `stream` is None, which
    Python sets `sys.stdout` to if the descriptor is closed, nothing is printed.

    With `background`, a separate thread prints the lines, so that a reader that stalls can't block
    the caller. In that case, print nothing to the stream by other means before `close`.
    """

    def __init__(
        self, stream: TextIO | None, *, output: bool = True, background: bool = False
    ) -> None:
        self._stream = stream
        self._output = output
        self._has_lost_lines = False
        self._background: BackgroundOutput | None = None
        if background and stream is not None:
            # If the system has no free processes, the caller prints the lines.
            with contextlib.suppress(RuntimeError):
                self._background = BackgroundOutput(stream.fileno(), self._warn)
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
        if self._background is not None:
            self._background.add(line)
            return
        try:
            print(line, file=self._stream, flush=True)
        except OSError as error:
            self._warn(error)

    def close(self) -> None:
        """Discard what could not be printed. Otherwise, Python would try again when it exits, and
        exit with status 120. The number of lines that a stalled reader has missed is printed to the
        standard error output.
        """
        if self._stream is None:
            return
        if self._background is not None and (lost := self._background.close(LAST_LINES_S)):
            _print_last_words(
                f"warning: the standard output was not being read; {lost} lines were not printed\n"
            )
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


def _print_last_words(text: str) -> None:
    """Print to the standard error output, unless its reader has stalled too."""
    with contextlib.suppress(OSError, ValueError):
        _, writable, _ = select.select([], [2], [], 0)
        if writable:
            os.write(2, text.encode())


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
