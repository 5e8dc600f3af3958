"""Files that are reloaded when they change, such as certificates."""

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
    """The result of `read`, reloaded when a file changes. Thread-safe.

    Files that do not match, as between two writes, or cannot be read leave the result unchanged;
    the next call tries again. The constructor raises the error of `read`, which is
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
        """Return the current result, reloaded if a file has changed."""
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
        """Return a function that returns the result if it changed since the last call, else
        None."""
        last = self.holds

        def renewed() -> Held | None:
            nonlocal last
            before, last = last, self.now()
            return None if last is before else last

        return renewed

    def _stamps_now(self) -> tuple[Stamp | None, ...]:
        return tuple(map(stamp_of, self._paths))


def renewed_credentials(
    files: RenewedFiles[Held],
    configuration_of: Callable[[Held], grpc.ServerCertificateConfiguration],
    *,
    callers_show_one: bool,
) -> grpc.ServerCredentials:
    """Return credentials for one address of a server, from the files' content at each handshake.

    With `callers_show_one`, callers without a certificate of the CA are rejected.
    """
    renewed = files.renewals()

    def configuration() -> grpc.ServerCertificateConfiguration | None:
        holds = renewed()
        return None if holds is None else configuration_of(holds)

    return grpc.dynamic_ssl_server_credentials(
        configuration_of(files.holds),
        # The stub omits None, which means unchanged.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", configuration),
        require_client_authentication=callers_show_one,
    )


def stamp_of(path: str | os.PathLike[str]) -> Stamp | None:
    """Return a stamp that changes with the file; None if there is no file.

    Follows symbolic links, as mounted secrets are.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
