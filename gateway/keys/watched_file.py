"""A file whose content holds until it has changed, and that is read again then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from antiphon.errors import InvalidArgument
from antiphon.transport.renewed_files import stamp_of
from gateway.threads import Threads

log = logging.getLogger("gateway.keys")

Content = TypeVar("Content")
_THREADS = Threads("keys")


class WatchedFile(Generic[Content]):
    """The content of a file as `read` returns it. Raises what `read` raises.

    A file that becomes wrong is logged once, and its last content holds on.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], Content],
        reload_s: float,
        clock: Callable[[], float],
        what: str,
    ) -> None:
        self._path = path
        self._read = read
        self._reload_s = reload_s
        self._clock = clock
        self._what = what
        self._reading = asyncio.Lock()
        self._looked_at = clock()
        self._stamp = stamp_of(path)
        self.content = read(path)

    async def look(self) -> None:
        """Read the file again if it has changed; not more often than every `reload_s`."""
        if self._clock() - self._looked_at < self._reload_s or self._reading.locked():
            return
        async with self._reading:
            self._looked_at = self._clock()
            stamp = await _THREADS.run(stamp_of, self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                self.content = await _THREADS.run(self._read, self._path)
            except InvalidArgument as error:
                log.error("the %s that held before hold on: %s", self._what, error.message)
                return
            log.info("the %s were read again from %s", self._what, self._path)
