"""Writes lines on a separate thread, so that a reader that has stopped reading delays nobody.

A pipe holds 64 KiB by default. If its reader stalls, or if output to a terminal is paused, the next
write waits until the reader continues. In the event loop of a launcher, this would stop restarts
and health probes. The descriptor can't be made non-blocking instead, because this would also apply
to every other process that has it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

MAX_WAITING_BYTES = 1 << 20
"""The maximum size of the lines that are waiting to be written."""


class BackgroundOutput:
    """Writes lines to a descriptor in the order in which they were added.

    If too many lines are waiting, further lines are dropped until the others have been written. The
    number of dropped lines is then written in their place. If a write fails, its lines are lost,
    and `report` is called on the thread with the error. The constructor raises `RuntimeError` if
    the system can't start a thread.
    """

    def __init__(
        self,
        descriptor: int,
        report: Callable[[OSError], None],
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._descriptor = descriptor
        self._report = report
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._dropped = 0
        self._closed = self._abandoned = False
        # If the reader never continues, the thread must not keep the process from exiting.
        self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        """Add a line, or drop it. This never waits for the reader."""
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._changed:
            if self._dropped or self._waiting_bytes + len(data) > self._max_bytes:
                self._dropped += 1
                self._changed.notify()
                return
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify()

    def close(self, within_s: float) -> int:
        """Wait until all lines have been written, for up to `within_s` seconds. Returns how many
        lines have been lost because they couldn't be written in time. Later calls return 0.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(within_s)
        with self._changed:
            if self._abandoned or not self._thread.is_alive():
                return 0
            self._abandoned = True
            return len(self._waiting) + self._dropped

    def _write_all(self) -> None:
        while (data := self._next()) is not None:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                self._report(error)
            with self._changed:
                self._waiting_bytes -= len(self._waiting.popleft())

    def _next(self) -> bytes | None:
        """Return the line to write next, which stays in the queue. Returns None at the end."""
        with self._changed:
            while not (self._waiting or self._dropped or self._closed):
                self._changed.wait()
            if not self._waiting and self._dropped:
                lines = "1 line" if self._dropped == 1 else f"{self._dropped} lines"
                note = f"[{lines} dropped, because the output was not being read]\n".encode()
                self._waiting.append(note)
                self._waiting_bytes += len(note)
                self._dropped = 0
            return self._waiting[0] if self._waiting and not self._abandoned else None
