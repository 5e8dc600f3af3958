"""Reloads files that can change while the process is running, such as certificates."""

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
    """Holds the result of `read`, which is called again whenever one of the files changes. This
    class is thread-safe.

    If the files can't be read or don't match each other, the previous result is kept, and the next
    call tries again. This happens, for example, while only one of them has been replaced. The
    constructor raises the error of `read`, which is `InvalidArgument`.
    """

    def __init__(self, paths: Iterable[str], read: Callable[[], Held]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._reading = threading.Lock()
        self._stamps = self._stamps_now()
        self._fault = ""
        self.holds = read()

    def now(self) -> Held:
        """Return the current result, after reloading it if a file has changed."""
        with self._reading:
            if (stamps := self._stamps_now()) != self._stamps:
                try:
                    self.holds = self._read()
                except InvalidArgument as error:
                    if error.message != self._fault:
                        self._fault = error.message
                        log.error("the certificate was not updated: %s", error.message)
                else:
                    self._stamps, self._fault = stamps, ""
                    log.info("the certificate was reloaded: %s", self._paths[0])
            return self.holds

    def renewals(self) -> Callable[[], Held | None]:
        """Return a function that returns the result if it has changed since the last call, and None
        otherwise.
        """
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
    """Return credentials for one of a server's addresses. Each handshake uses the current content
    of the files.

    If `callers_show_one` is true, callers must present a certificate issued by the CA.
    """
    renewed = files.renewals()

    def configuration() -> grpc.ServerCertificateConfiguration | None:
        holds = renewed()
        return None if holds is None else configuration_of(holds)

    return grpc.dynamic_ssl_server_credentials(
        configuration_of(files.holds),
        # The type stub is missing None, which means that nothing has changed.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", configuration),
        require_client_authentication=callers_show_one,
    )


def stamp_of(path: str | os.PathLike[str]) -> Stamp | None:
    """Return a value that changes when the file changes, or None if the file doesn't exist.

    Symbolic links are followed, because mounted secrets are symbolic links.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
