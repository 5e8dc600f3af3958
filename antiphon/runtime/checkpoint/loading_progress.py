"""Reports how much of a stage's weights has been loaded. This is shown as a progress bar on a
terminal and as log lines otherwise.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Self, TextIO

BAR_WIDTH = 30
BAR_STEPS = 100
"""The maximum number of times that the progress bar is redrawn."""
LOG_STEPS = 10
"""The maximum number of log lines while loading. They are followed by a summary."""
MIN_BYTES = 1 << 30
"""For parts smaller than this many bytes, only the summary is logged."""

log = logging.getLogger(__name__)


class LoadingProgress:
    """A context manager that reports the loading progress for one part of a model.

    If loading succeeds, a summary is logged with the size, the elapsed time in seconds, and the
    rate in GB/s.
    """

    def __init__(self, part: str, total: int, stream: TextIO | None = None) -> None:
        """Report on a part with a size of `total` bytes. The progress bar is written to `stream`,
        which defaults to standard error.
        """
        self._part, self._total = part, total
        self._stream = sys.stderr if stream is None else stream
        self._on_terminal = self._stream.isatty()
        self._steps = BAR_STEPS if self._on_terminal else LOG_STEPS
        self._loaded = self._reported = 0
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *details: object) -> None:
        if self._on_terminal and self._reported:
            self._stream.write("\n")
            self._stream.flush()
        if error is None:
            self._log_summary()

    def add(self, size: int) -> None:
        """Add `size` to the number of bytes that have been loaded. Report each progress step that
        this completes.
        """
        self._loaded += size
        step = self._steps * self._loaded // max(self._total, 1)
        if self._total < MIN_BYTES or step <= self._reported or self._loaded >= self._total:
            return
        self._reported = step
        if self._on_terminal:
            bar = "#" * (BAR_WIDTH * step // self._steps)
            self._stream.write(f"\r{self._part} [{bar:<{BAR_WIDTH}}] {self._amount()}")
            self._stream.flush()
        else:
            log.info("%s: loaded %s", self._part, self._amount())

    def _amount(self) -> str:
        seconds = time.monotonic() - self._started
        return f"{self._loaded / 1e9:.1f} of {self._total / 1e9:.1f} GB in {seconds:.0f} s"

    def _log_summary(self) -> None:
        seconds = time.monotonic() - self._started
        gigabytes = self._loaded / 1e9
        rate = gigabytes / seconds if seconds else 0.0
        log.info("%s: loaded %.2f GB in %.1f s (%.2f GB/s)", self._part, gigabytes, seconds, rate)
