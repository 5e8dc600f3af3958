"""The errors that antiphon raises. They are the same in all protocols.

Every error has a code, a message and a location. The code indicates how the caller should react.
The location is the request field, the stage or the edge that caused the error.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class ErrorCode(enum.Enum):
    """The kind of failure. The values correspond to those of `antiphon.v1.ErrorCode`."""

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
    """Return the text. If it has more than `most` characters, the middle is replaced by an
    ellipsis.
    """
    if len(text) <= most:
        return text
    tail = (most - len(_ELISION)) // 3
    return f"{text[: most - len(_ELISION) - tail]}{_ELISION}{text[-tail:]}"


def told(value: object, most: int = 80) -> str:
    """Format a value of any type and any size for use in an error message."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        value = value[: most + 1]
    return shortened(repr(value), most)


RETRYABLE = frozenset({ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.UNAVAILABLE})


class AntiphonError(Exception):
    """The base class of all errors. Only its subclasses should be raised.

    `field` is the dotted path of the invalid request field, `stage` is the role of the stage that
    failed, and `edge` is the edge that failed or whose data didn't arrive. Attributes that don't
    apply are empty. A message may quote input of any length, so messages are shortened here, for
    all endpoints and logs.
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
        """Whether the same request might succeed later."""
        return self.code in RETRYABLE


class InvalidArgument(AntiphonError):
    """The request is invalid. Trying again won't help."""

    code = ErrorCode.INVALID_ARGUMENT


class NotFound(AntiphonError):
    """The model, voice or session doesn't exist, or the recording is no longer stored."""

    code = ErrorCode.NOT_FOUND


class NotImplementedYet(AntiphonError):
    """The interface allows this request, but it isn't implemented in this version."""

    code = ErrorCode.NOT_IMPLEMENTED


class ResourceExhausted(AntiphonError):
    """No slot is free, or a limit has been reached."""

    code = ErrorCode.RESOURCE_EXHAUSTED


class FailedPrecondition(AntiphonError):
    """The stages are incompatible, or the message isn't allowed in the current state."""

    code = ErrorCode.FAILED_PRECONDITION


class Unavailable(AntiphonError):
    """A stage or a link is down."""

    code = ErrorCode.UNAVAILABLE


class DeadlineExceeded(AntiphonError):
    """A deadline has passed, or the data on an edge didn't arrive in time."""

    code = ErrorCode.DEADLINE_EXCEEDED


class Cancelled(AntiphonError):
    """The caller has cancelled the request."""

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
    """The model's output can't be used. For example, it may have called a function that doesn't
    exist.
    """

    code = ErrorCode.UNUSABLE_OUTPUT


def unexpected(error: Exception) -> Internal:
    """Return an `Internal` error for an exception that isn't an `AntiphonError`."""
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
