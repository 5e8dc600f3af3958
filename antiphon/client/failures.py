"""What a failed gRPC call means to the client's caller. Pure."""

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

# How gRPC reports a first answer that is not HTTP/2, such as that of an HTTP/1 server.
_NO_HTTP_2 = re.compile(r"http1\.x server|Expected SETTINGS frame as the first frame")
# The certificates or protocols of the two sides do not fit; another try fails in the same way.
_UNTRUSTED = re.compile(r"TSI_PROTOCOL_FAILURE|verification check failed", re.IGNORECASE)
_BEFORE_ANY_ANSWER = re.compile(r"failed to connect.*(Socket closed|reset by peer)", re.IGNORECASE)
# How HTTP/2 proxies report that the server behind them has gone in the middle of a call.
_RESET = re.compile(r"RST_STREAM")


def call_error(failure: grpc.RpcError, target: ServerTarget) -> AntiphonError:
    """The typed error of a failed call. The caller raises it `from` the failure.

    Errors that gRPC itself raises name the address. Those that another try cannot mend are not
    `retryable`: a port without HTTP/2 is `InvalidArgument`, a failed TLS handshake is
    `FailedPrecondition`.
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
            f"address: {address} is not a gRPC port, but perhaps the gateway's HTTP port; give its "
            "gRPC port (gateway.grpc_listen, 50050 by default)",
            field="address",
        )
    if _UNTRUSTED.search(said):
        return FailedPrecondition(f"tls: no secure connection to {address}: {said}", field="tls")
    if isinstance(error, Internal) and _RESET.search(said):
        return Unavailable(f"{address}: {said}")
    if not isinstance(error, Unavailable):
        return error
    hint = ""
    if _BEFORE_ANY_ANSWER.search(said):
        hint = (
            "; if the server has TLS, give tls=True"
            if target.credentials is None
            else "; if the server asks for a client certificate, give it in tls"
        )
    return Unavailable(f"{address}: {error.message}{hint}")
