"""Conversion of errors from and to gRPC status, with the typed error in the trailing metadata.

A generic gRPC client sees a matching status code and the message. An antiphon client gets the same
exception type with all fields.
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
    # The last code of a status is its meaning without a typed error.
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
# gRPC's messages about a message or metadata above a limit, at either end. gRPC uses
# RESOURCE_EXHAUSTED, but a retry would be too large again.
_TOO_LARGE = re.compile(r"larger than max|metadata size exceeds|(soft|hard) limit", re.IGNORECASE)
# gRPC's messages about a call that this side ended.
_OWN_END = re.compile(r"locally cancelled|channel closed", re.IGNORECASE)
_CODE = {status: code for code, status in _STATUS.items()}


_WRITING_FAILED = "Internal error from Core"
"""grpc.aio's placeholder for the status of a call whose message could not be written, because the
call or its connection is gone."""


def is_typed(failure: grpc.RpcError) -> bool:
    """Return whether a failed call carries an antiphon error."""
    return isinstance(failure, grpc.Call | grpc.aio.AioRpcError) and any(
        key == ERROR_METADATA_KEY for key, _ in failure.trailing_metadata() or ()
    )


def error_from_rpc(failure: grpc.RpcError, *, stage: str = "") -> AntiphonError:
    """Return the typed error of a failed call.

    `stage` is used if the error has none. The caller raises it `from` the RPC error.
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
        # A server that stops ends so what has just come, and it tells nobody.
        kind, said = Unavailable, "the server has ended the call"
    if kind is Internal and said == _WRITING_FAILED:
        kind, said = Unavailable, "the call was over while something was being sent"
    if kind is ResourceExhausted and _TOO_LARGE.search(said):
        kind = InvalidArgument
    return kind(said, stage=stage)


def said_by(failure: grpc.Call | grpc.aio.AioRpcError) -> str:
    """Return a failed call's details, or the name of its status if it has none."""
    return failure.details() or failure.code().name.lower()


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: AntiphonError) -> NoReturn:
    """End the call with the error's status, and the typed error in the trailing metadata."""
    proto = error_to_proto(error)
    metadata = ((ERROR_METADATA_KEY, proto.SerializeToString()),)
    await context.abort(_STATUS[error.code], proto.message, metadata)
