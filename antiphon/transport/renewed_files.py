"""Files that are renewed while a process runs, such as certificates."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from antiphon.errors import InvalidArgument

Held = TypeVar("Held")
_Stamp = tuple[int, int, int]

log = logging.getLogger(__name__)


class RenewedFiles(Generic[Held]):
    """What `read` makes of the files, read again when they have changed. Any thread may ask.

    Files that do not fit together, as between two writes of them, change nothing until they do.
    Constructing raises what `read` raises, which is `InvalidArgument`.
    """

    def __init__(self, paths: Iterable[str], read: Callable[[], Held]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._reading = threading.Lock()
        self._stamps = self._stamps_now()
        self.holds = read()

    def now(self) -> Held:
        """What holds now: read again if a file has changed."""
        with self._reading:
            if (stamps := self._stamps_now()) != self._stamps:
                self._stamps = stamps
                try:
                    self.holds = self._read()
                except InvalidArgument as error:
                    log.error("the certificate that held before holds on: %s", error.message)
                else:
                    log.info("read the certificate again: %s", self._paths[0])
            return self.holds

    def renewals(self) -> Callable[[], Held | None]:
        """Tells, each time that it is called, what holds since it was last; None: nothing new."""
        told = self.holds

        def renewed() -> Held | None:
            nonlocal told
            before, told = told, self.now()
            return None if told is before else told

        return renewed

    def _stamps_now(self) -> tuple[_Stamp | None, ...]:
        """What changes with the files, also where they are links, as mounted secrets are."""
        return tuple(map(_stamp_of, self._paths))


def _stamp_of(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
