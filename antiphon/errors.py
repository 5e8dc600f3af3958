"""The errors that antiphon raises. They are the same for all protocols.

Every error has a code, a message and a location. The code determines how the caller should react.
The location is the request field, the stage or the edge that caused the error.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class ErrorCode(enum.Enum):
    """The kind of a failure. The values mirror `antiphon.v1.ErrorCode`."""

    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    NOT_IMPLEMENTED = "not_implemented"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    FAILED_PRECONDITION = "failed_precondition"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    INTERNAL = "internal"
    DATA_LOSS = "data_loss"
    UNAUTHENTICATED = "unauthenticated"
    UNUSABLE_OUTPUT = "unusable_output"


MAX_MESSAGE_CHARS = 8192
MAX_FIELD_CHARS = 256
_ELISION = " [...] "


def shortened(text: str, most: int) -> str:
    """Return the text. If it is longer than `most` characters, its middle is replaced by an
    ellipsis.
    """
    if len(text) <= most:
        return text
    tail = (most - len(_ELISION)) // 3
    return f"{text[: most - len(_ELISION) - tail]}{_ELISION}{text[-tail:]}"


def told(value: object, most: int = 80) -> str:
    """Format a value of any type and size for an error message."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        value = value[: most + 1]
    return shortened(repr(value), most)


RETRYABLE = frozenset({ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.UNAVAILABLE})


class AntiphonError(Exception):
    """Base class of all errors. Raise one of its subclasses.

    `field` is the dotted path of the invalid request field. `stage` is the role of the stage that
    failed. `edge` is the edge that failed or whose data did not arrive. Each of them is empty if it
    does not apply. Messages may quote input, so they are shortened here, for all endpoints and
    logs.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        stage: str = "",
        edge: str = "",
        retry_after_s: float = 0.0,
    ) -> None:
        self.message = shortened(message, MAX_MESSAGE_CHARS)
        super().__init__(self.message)
        self.field = shortened(field, MAX_FIELD_CHARS)
        self.stage = stage
        self.edge = edge
        self.retry_after_s = retry_after_s

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code in RETRYABLE


class InvalidArgument(AntiphonError):
    """The request is invalid. Retrying does not help."""

    code = ErrorCode.INVALID_ARGUMENT


class NotFound(AntiphonError):
    """The model, voice or session does not exist, or the recording is no longer stored."""

    code = ErrorCode.NOT_FOUND


class NotImplementedYet(AntiphonError):
    """The interface allows the request, but this version does not implement it."""

    code = ErrorCode.NOT_IMPLEMENTED


class ResourceExhausted(AntiphonError):
    """No slot is free, or a limit was reached."""

    code = ErrorCode.RESOURCE_EXHAUSTED


class FailedPrecondition(AntiphonError):
    """The stages are incompatible, or a message is not allowed in the current state."""

    code = ErrorCode.FAILED_PRECONDITION


class Unavailable(AntiphonError):
    """A stage or a link is down."""

    code = ErrorCode.UNAVAILABLE


class DeadlineExceeded(AntiphonError):
    """A deadline passed, or an edge delivered no data in time."""

    code = ErrorCode.DEADLINE_EXCEEDED


class Cancelled(AntiphonError):
    """The caller cancelled the request."""

    code = ErrorCode.CANCELLED


class Internal(AntiphonError):
    """A bug in antiphon or in a model."""

    code = ErrorCode.INTERNAL


class DataLoss(AntiphonError):
    """Chunks were lost, reordered or malformed."""

    code = ErrorCode.DATA_LOSS


class Unauthenticated(AntiphonError):
    """The API key is missing or invalid."""

    code = ErrorCode.UNAUTHENTICATED


class UnusableOutput(AntiphonError):
    """The model produced output that cannot be used, such as a call to a function that does not
    exist.
    """

    code = ErrorCode.UNUSABLE_OUTPUT


def unexpected(error: Exception) -> Internal:
    """Return an `Internal` error for an exception that is not an `AntiphonError`."""
    return Internal(f"{type(error).__name__}: {error}")


ERROR_BY_CODE: dict[ErrorCode, type[AntiphonError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        NotFound,
        NotImplementedYet,
        ResourceExhausted,
        FailedPrecondition,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        Internal,
        DataLoss,
        Unauthenticated,
        UnusableOutput,
    )
}
