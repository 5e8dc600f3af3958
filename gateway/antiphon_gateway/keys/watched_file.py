"""A file that is reloaded when it has changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from antiphon.errors import InvalidArgument
from antiphon.transport.renewed_files import stamp_of
from antiphon_gateway.regular_file import UnreadableFile
from antiphon_gateway.threads import Threads

log = logging.getLogger("gateway.keys")

Content = TypeVar("Content")
_THREADS = Threads("keys")


class WatchedFile(Generic[Content]):
    """The content of a file, as returned by `read`. Raises the errors of `read`.

    If the file becomes invalid, this is logged once, and the last valid content is kept. If the
    file can't be read, every call of `look` tries again.
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
        self._fault = ""
        self.content = read(path)

    async def look(self) -> None:
        """Reload the file if it has changed. This is checked at most once every
        `reload_s` seconds.
        """
        if self._clock() - self._looked_at < self._reload_s or self._reading.locked():
            return
        async with self._reading:
            self._looked_at = self._clock()
            stamp = await _THREADS.run(stamp_of, self._path)
            if stamp == self._stamp:
                return
            try:
                self.content = await _THREADS.run(self._read, self._path)
            except InvalidArgument as error:
                self._stamp = None if isinstance(error, UnreadableFile) else stamp
                if error.message != self._fault:
                    self._fault = error.message
                    log.error("the %s were not updated: %s", self._what, error.message)
                return
            self._stamp, self._fault = stamp, ""
            log.info("the %s were reloaded from %s", self._what, self._path)
