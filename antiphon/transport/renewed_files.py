"""Files that are renewed while a process runs, such as certificates."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, cast

import grpc

from antiphon.errors import InvalidArgument

Held = TypeVar("Held")
Stamp = tuple[int, int, int]

log = logging.getLogger(__name__)


class RenewedFiles(Generic[Held]):
    """What `read` makes of the files, read again when they have changed. Any thread may ask.

    Files that do not fit together, as between two writes of them, or cannot be read, change nothing
    and are read again with each question. Constructing raises what `read` raises, which is
    `InvalidArgument`.
    """

    def __init__(self, paths: Iterable[str], read: Callable[[], Held]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._reading = threading.Lock()
        self._stamps = self._stamps_now()
        self._fault = ""
        self.holds = read()

    def now(self) -> Held:
        """What holds now: read again if a file has changed."""
        with self._reading:
            if (stamps := self._stamps_now()) != self._stamps:
                try:
                    self.holds = self._read()
                except InvalidArgument as error:
                    if error.message != self._fault:
                        self._fault = error.message
                        log.error("the certificate is not changed: %s", error.message)
                else:
                    self._stamps, self._fault = stamps, ""
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

    def _stamps_now(self) -> tuple[Stamp | None, ...]:
        return tuple(map(stamp_of, self._paths))


def renewed_credentials(
    files: RenewedFiles[Held],
    configuration_of: Callable[[Held], grpc.ServerCertificateConfiguration],
    *,
    callers_show_one: bool,
) -> grpc.ServerCredentials:
    """For one address of a server, by what the files hold at each handshake.

    `callers_show_one`: a caller without a certificate of the authority is refused.
    """
    renewed = files.renewals()

    def configuration() -> grpc.ServerCertificateConfiguration | None:
        holds = renewed()
        return None if holds is None else configuration_of(holds)

    return grpc.dynamic_ssl_server_credentials(
        configuration_of(files.holds),
        # Typed without None, which says that nothing has changed.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", configuration),
        require_client_authentication=callers_show_one,
    )


def stamp_of(path: str | os.PathLike[str]) -> Stamp | None:
    """What changes with a file, also where it is a link, as mounted secrets are; None without."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
