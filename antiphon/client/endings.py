"""How a call has ended for its caller. Both clients share this module, which performs no I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from google.protobuf.message import DecodeError

from antiphon.client.calls import Method, Request, Response
from antiphon.errors import AntiphonError, DataLoss, FailedPrecondition


class Ending:
    """The end of a call: its error, or None if it was completed. Only the first end counts, so all
    later reads and writes end in the same way. Can be used by several threads.
    """

    def __init__(self) -> None:
        self._setting = threading.Lock()
        self._error: AntiphonError | None = None
        self.is_set = False

    def set(self, error: AntiphonError | None) -> None:
        """Record the end of the call, unless it has already ended."""
        with self._setting:
            if not self.is_set:
                self._error = error
                self.is_set = True

    @property
    def error(self) -> AntiphonError | None:
        """The error to raise. Its traceback is empty, because it can be raised several times."""
        return None if self._error is None else self._error.with_traceback(None)


class OneReader:
    """Rejects a second task or thread that reads while another one is waiting for a message."""

    def __init__(self) -> None:
        self._reading = threading.Lock()

    @property
    def is_reading(self) -> bool:
        """Whether a task or thread is waiting for a message."""
        return self._reading.locked()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read within this context. Raises `FailedPrecondition` if it is in use."""
        if not self._reading.acquire(blocking=False):
            raise FailedPrecondition(
                "another task or thread is already reading this call; read from one of them only"
            )
        try:
            yield
        finally:
            self._reading.release()


def decode(method: Method[Request, Response], data: bytes) -> Response:
    """Return the message. Raises `DataLoss` if it is malformed.

    If gRPC decoded it, it would log the error and continue: the asyncio client would receive None,
    and the blocking client would not cancel the call.
    """
    read: Callable[[bytes], Response] = method.read
    try:
        return read(data)
    except DecodeError as error:
        raise DataLoss(f"received a malformed message from {method.path}: {error}") from error
