"""Displays the progress of a download as a progress bar on a terminal, or as lines elsewhere."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

LINES = 20
"""The maximum number of progress lines if the output is not a terminal, not counting the one at the
end.
"""


class TransferProgress:
    """The progress of downloading several files, which may be received in different threads.

    `cached` is the number of bytes, out of `total`, that are already available. They are not used
    to estimate the remaining time.
    """

    def __init__(self, name: str, total: int, stream: TextIO, *, cached: int = 0) -> None:
        self._name, self._stream = name, stream
        self._total, self._done, self._cached = total, cached, cached
        self._started = time.monotonic()
        self._lines = 0
        self._lock = threading.Lock()
        self._bar: tqdm[None] | None = None

    def __enter__(self) -> TransferProgress:
        if self._stream.isatty():
            self._bar = tqdm(
                desc=self._name,
                total=self._total,
                initial=self._done,
                unit="B",
                unit_scale=True,
                file=self._stream,
            )
        else:
            self._say(f"downloading {size(self._total - self._done)}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif error is None:
            self._say(f"downloaded in {duration(time.monotonic() - self._started)}")

    def add(self, count: int) -> None:
        """Add to the number of received bytes. `count` is negative if a file starts again."""
        with self._lock:
            self._done += count
            if self._bar is not None:
                self._bar.update(count)
                return
            if self._total and self._done * LINES // self._total > self._lines:
                self._lines = self._done * LINES // self._total
                if self._done < self._total:
                    self._say(f"{size(self._done)} of {size(self._total)}{self._left()}")

    def held(self, count: int) -> None:
        """Add bytes that were available before the download started."""
        with self._lock:
            self._cached += count
        self.add(count)

    def _left(self) -> str:
        received = self._done - self._cached
        if received <= 0:
            return ""
        seconds = (time.monotonic() - self._started) * (self._total - self._done) / received
        return f", {duration(seconds)} left"

    def _say(self, text: str) -> None:
        print(f"{self._name}: {text}", file=self._stream, flush=True)


def size(count: int) -> str:
    """Format a number of bytes."""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count} bytes"


def duration(seconds: float) -> str:
    """Format a duration in seconds."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
