"""Converts errors to and from gRPC statuses. The typed error is sent as trailing metadata.

A generic gRPC client receives a suitable status code and the error message. An antiphon client
receives an exception of the same type, with all of its fields.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import grpc

from antiphon.errors import (
    ERROR_BY_CODE,
    AntiphonError,
    Cancelled,
    ErrorCode,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from antiphon.v1 import session_pb2
from antiphon.wire.convert import error_from_proto, error_to_proto

ERROR_METADATA_KEY = "antiphon-error-bin"

_STATUS = {
    # Several errors can map to the same status. If a status doesn't contain a typed error, the last
    # of these is used.
    ErrorCode.UNUSABLE_OUTPUT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.RESOURCE_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.FAILED_PRECONDITION: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.CANCELLED: grpc.StatusCode.CANCELLED,
    ErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorCode.DATA_LOSS: grpc.StatusCode.DATA_LOSS,
    ErrorCode.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
}
# gRPC's error messages for a message or metadata that exceeds a size limit at either end. gRPC
# reports them as RESOURCE_EXHAUSTED, but trying again wouldn't help.
_TOO_LARGE = re.compile(r"larger than max|metadata size exceeds|(soft|hard) limit", re.IGNORECASE)
# gRPC's error messages for a call that was ended on our side.
_OWN_END = re.compile(r"locally cancelled|channel closed", re.IGNORECASE)
_CODE = {status: code for code, status in _STATUS.items()}


_WRITING_FAILED = "Internal error from Core"


def is_typed(failure: grpc.RpcError) -> bool:
    """Return whether a failed call contains an antiphon error."""
    return isinstance(failure, grpc.Call | grpc.aio.AioRpcError) and any(
        key == ERROR_METADATA_KEY for key, _ in failure.trailing_metadata() or ()
    )


def ended_while_sending(failure: grpc.Call | grpc.aio.AioRpcError) -> bool:
    """Return whether a status is the one that grpc.aio sets if it couldn't send a message because
    the call or its connection is gone.
    """
    return failure.code() is grpc.StatusCode.INTERNAL and failure.details() == _WRITING_FAILED


def error_from_rpc(failure: grpc.RpcError, *, stage: str = "") -> AntiphonError:
    """Return the typed error of a failed call.

    If the error doesn't name a stage, `stage` is used. The caller should raise the result with
    `from failure`.
    """
    if not isinstance(failure, grpc.Call | grpc.aio.AioRpcError):
        return Internal(str(failure), stage=stage)
    for key, value in failure.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY and isinstance(value, bytes):
            error = error_from_proto(session_pb2.SessionError.FromString(value))
            error.stage = error.stage or stage
            return error
    code, said = _CODE.get(failure.code()), said_by(failure)
    kind = Internal if code is None else ERROR_BY_CODE[code]
    if kind is Cancelled and not _OWN_END.search(said):
        # This is how a server that is shutting down ends new calls. It doesn't send any other
        # information.
        kind, said = Unavailable, "the server has ended the call"
    if ended_while_sending(failure):
        kind, said = Unavailable, "the call ended while a message was being sent"
    if kind is ResourceExhausted and _TOO_LARGE.search(said):
        kind = InvalidArgument
    return kind(said, stage=stage)


def said_by(failure: grpc.Call | grpc.aio.AioRpcError) -> str:
    """Return the details of a failed call. If there are none, the name of its status is
    returned.
    """
    return failure.details() or failure.code().name.lower()


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: AntiphonError) -> NoReturn:
    """End the call with the status for this error. The typed error is sent as trailing metadata."""
    proto = error_to_proto(error)
    metadata = ((ERROR_METADATA_KEY, proto.SerializeToString()),)
    await context.abort(_STATUS[error.code], proto.message, metadata)
