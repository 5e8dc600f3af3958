"""How a call has ended for its caller. Both clients share this module, which performs no I/O."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from types import TracebackType

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
                self._error = None if error is None else _copy(error)
                self.is_set = True

    def fail(self, error: AntiphonError) -> AntiphonError:
        """Record an error as the end of the call, unless it has already ended. Returns a copy of
        the error with which it has ended, or of `error` if it was completed.
        """
        self.set(error)
        return _copy(self._error or error)

    def check(self) -> None:
        """Raise the error with which the call has ended, if any.

        Each reader and writer gets its own copy, because raising an error changes its traceback.
        """
        if self._error is not None:
            # A local variable would form a cycle with the traceback.
            raise _copy(self._error)


def _copy(error: AntiphonError) -> AntiphonError:
    """Return a copy without a traceback. A traceback would keep the call and the frames of its
    callers alive until the next garbage collection.
    """
    copied = copy.copy(error)
    if error.__cause__ is not None:
        copied.__cause__ = error.__cause__.with_traceback(None)
    return copied


class OneReader:
    """A context in which a task or thread reads. Entering it raises `FailedPrecondition` while
    another task or thread is in it.
    """

    def __init__(self) -> None:
        self._reading = threading.Lock()

    @property
    def is_reading(self) -> bool:
        """Whether a task or thread is waiting for a message."""
        return self._reading.locked()

    def __enter__(self) -> None:
        if not self._reading.acquire(blocking=False):
            raise FailedPrecondition(
                "another task or thread is already reading this call; read from one of them only"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
