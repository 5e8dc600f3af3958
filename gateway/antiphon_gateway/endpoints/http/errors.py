"""Converts errors to the status codes, headers and bodies that OpenAI's clients expect."""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

from antiphon.errors import (
    AntiphonError,
    DeadlineExceeded,
    ErrorCode,
    InvalidArgument,
    ResourceExhausted,
    Unauthenticated,
)
from antiphon_gateway.keys.key_use import KeyLimitReached

_STATUS = {
    ErrorCode.INVALID_ARGUMENT: 400,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.NOT_IMPLEMENTED: 400,
    ErrorCode.RESOURCE_EXHAUSTED: 429,
    ErrorCode.FAILED_PRECONDITION: 503,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.CANCELLED: 499,
    ErrorCode.INTERNAL: 500,
    ErrorCode.DATA_LOSS: 500,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.UNUSABLE_OUTPUT: 422,
}
DEFAULT_RETRY_AFTER_S = 1.0


class BodyTooLarge(InvalidArgument):
    """The request body is larger than the gateway allows."""


class TooManyValues(BodyTooLarge):
    """The request body contains more JSON values than the gateway allows."""


class EncodedBody(InvalidArgument):
    """The request body uses a content coding."""


class BodyTooSlow(DeadlineExceeded):
    """The request body didn't arrive in time."""


class ErrorBody(msgspec.Struct, frozen=True):
    """An error in OpenAI's format. See `api_code`."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: ErrorBody


def status_of(error: AntiphonError) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, BodyTooLarge):
        return 413
    if isinstance(error, EncodedBody):
        return 415
    return 408 if isinstance(error, BodyTooSlow) else _STATUS[error.code]


def api_code(error: AntiphonError) -> str:
    """Return the code of an error. If the error is about an API key or its limits, this is OpenAI's
    code. Otherwise, it is antiphon's.
    """
    if isinstance(error, KeyLimitReached):
        return f"key_{error.limit}"
    return "invalid_api_key" if isinstance(error, Unauthenticated) else error.code.value


def error_json(error: AntiphonError) -> bytes:
    """Return the body `{"error": {...}}`, which is also used if an error occurs in the middle of a
    stream.
    """
    status = status_of(error)
    kind = "invalid_request_error" if status < 429 else "server_error"
    if isinstance(error, ResourceExhausted):
        kind = "rate_limit_error"
    body = ErrorBody(error.message, kind, error.field or None, api_code(error))
    return msgspec.json.encode(ErrorAnswer(body))


def error_response(error: AntiphonError, status: int = 0) -> Response:
    """Return the response for an error. If `status` is set, it is used instead of the error's own
    status.
    """
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if error.retryable:
        seconds = error.retry_after_s or DEFAULT_RETRY_AFTER_S
        headers["retry-after"] = str(math.ceil(seconds))
    return Response(
        error_json(error), status or status_of(error), headers, media_type="application/json"
    )
