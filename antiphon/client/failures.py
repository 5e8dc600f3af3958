"""Converts failed gRPC calls to the SDK's errors. This module performs no I/O."""

from __future__ import annotations

import re

import grpc

from antiphon.client.connection import ServerTarget
from antiphon.errors import (
    AntiphonError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    Unavailable,
)
from antiphon.wire.status import error_from_rpc, is_typed, said_by

# gRPC's error message for a server that doesn't support HTTP/2, such as an HTTP/1 server.
_NO_HTTP_2 = re.compile(r"http1\.x server|Expected SETTINGS frame as the first frame")
# The TLS handshake failed. It would fail again on the next attempt.
_UNTRUSTED = re.compile(r"TSI_PROTOCOL_FAILURE|verification check failed", re.IGNORECASE)
_BEFORE_ANY_ANSWER = re.compile(r"failed to connect.*(Socket closed|reset by peer)", re.IGNORECASE)
# The error message of an HTTP/2 proxy that lost its connection to the server in the middle of a
# call.
_RESET = re.compile(r"RST_STREAM")


def call_error(failure: grpc.RpcError, target: ServerTarget) -> AntiphonError:
    """Return the typed error for a failed call. The caller should raise it with `from failure`.

    If the error comes from gRPC itself, the message contains the address. The error is not
    `retryable` if it doesn't make sense to try again. If the port doesn't support HTTP/2, the error
    is `InvalidArgument`. If the TLS handshake failed, it is `FailedPrecondition`.
    """
    error = error_from_rpc(failure)
    if is_typed(failure):
        target.contact.made = True
        return error
    if not isinstance(failure, grpc.Call | grpc.aio.AioRpcError):
        return error
    said, address = said_by(failure), target.address
    if _NO_HTTP_2.search(said):
        return InvalidArgument(
            f"address: {address} is not a gRPC port; it may be an HTTP port; use the gRPC port of "
            "the gateway (gateway.grpc_listen, 50050 by default) or of the stage (listen)",
            field="address",
        )
    if _UNTRUSTED.search(said):
        return FailedPrecondition(
            f"tls: can't establish a secure connection to {address}: {said}", field="tls"
        )
    if isinstance(error, Internal) and _RESET.search(said):
        return Unavailable(f"{address}: {said}")
    if not isinstance(error, Unavailable):
        return error
    hint = ""
    if _BEFORE_ANY_ANSWER.search(said):
        hint = (
            "; if the server uses TLS, set tls=True"
            if target.credentials is None
            else "; if the server requires a client certificate, set it in tls"
        )
    return Unavailable(f"{address}: {error.message}{hint}")
