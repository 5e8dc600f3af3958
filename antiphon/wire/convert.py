"""Converts settings and errors to and from proto messages.

Chunks are converted in chunks.py, which requires numpy. When a message is read, everything that
proto types can't guarantee is validated, such as the range of a number. If a value is invalid,
`InvalidArgument` is raised with the name of its field.
"""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Integral

from antiphon.errors import (
    ERROR_BY_CODE,
    AntiphonError,
    ErrorCode,
    Internal,
    InvalidArgument,
    shortened,
)
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.values.sampling import MAX_STOPS, SamplingRequest
from antiphon.values.segment import ChunkPolicy, Delivery, FinishReason

MAX_FRAMES_PER_CHUNK = 1 << 16
MAX_RAMP = 64
# Errors are sent as trailing metadata, which gRPC limits to 8 KiB. The text appears there twice. In
# the status line, one byte can become three. The other copy is in a base64-encoded message.
MAX_ERROR_TEXT_BYTES = 1024
MAX_ERROR_NAME_BYTES = 256

_FINISH_TO_PROTO = {
    FinishReason.STOP: chunk_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: chunk_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: chunk_pb2.FINISH_REASON_CANCELLED,
}
_FINISH_FROM_PROTO = {proto: value for value, proto in _FINISH_TO_PROTO.items()}
_DELIVERY_TO_PROTO = {
    Delivery.STREAM: session_pb2.DELIVERY_STREAM,
    Delivery.WHOLE: session_pb2.DELIVERY_WHOLE,
}
_DELIVERY_FROM_PROTO = {proto: value for value, proto in _DELIVERY_TO_PROTO.items()}
_CODE_TO_PROTO = {
    code: session_pb2.ErrorCode.Value(f"ERROR_CODE_{code.name}") for code in ErrorCode
}
_SETTINGS = tuple(each.name for each in fields(SamplingRequest) if each.name != "stop")
_CODE_FROM_PROTO = {proto: code for code, proto in _CODE_TO_PROTO.items()}


def finish_reason_to_proto(reason: FinishReason | None) -> chunk_pb2.FinishReason.ValueType:
    """Return the proto enum for a reason. None becomes the unspecified value."""
    return chunk_pb2.FINISH_REASON_UNSPECIFIED if reason is None else _FINISH_TO_PROTO[reason]


def finish_reason_from_proto(proto: chunk_pb2.FinishReason.ValueType) -> FinishReason | None:
    """Return the reason, or None if the proto value is unspecified or not known."""
    return _FINISH_FROM_PROTO.get(proto)


def delivery_to_proto(delivery: Delivery) -> session_pb2.Delivery.ValueType:
    """Return the proto enum."""
    return _DELIVERY_TO_PROTO[delivery]


def delivery_from_proto(proto: session_pb2.Delivery.ValueType) -> Delivery | None:
    """Return the delivery, or None if the proto value is unspecified. Raises `InvalidArgument` if
    the value is not known.
    """
    if proto == session_pb2.DELIVERY_UNSPECIFIED:
        return None
    if proto not in _DELIVERY_FROM_PROTO:
        raise InvalidArgument(f"delivery: {proto} is not a delivery", field="delivery")
    return _DELIVERY_FROM_PROTO[proto]


def error_to_proto(error: AntiphonError) -> session_pb2.SessionError:
    """Convert an error to a message. Long texts are shortened, because the metadata has a size
    limit.
    """
    return session_pb2.SessionError(
        code=_CODE_TO_PROTO[error.code],
        message=_cut(error.message, MAX_ERROR_TEXT_BYTES),
        field=_cut(error.field, MAX_ERROR_NAME_BYTES),
        stage=_cut(error.stage, MAX_ERROR_NAME_BYTES),
        edge=_cut(error.edge, MAX_ERROR_NAME_BYTES),
        retry_after_s=error.retry_after_s,
    )


def error_from_proto(proto: session_pb2.SessionError) -> AntiphonError:
    """Convert a message to an exception. If the error code is not known, the result is
    `Internal`.
    """
    code = _CODE_FROM_PROTO.get(proto.code)
    kind = Internal if code is None else ERROR_BY_CODE[code]
    return kind(
        proto.message,
        field=proto.field,
        stage=proto.stage,
        edge=proto.edge,
        # This value ends up in an HTTP header, so invalid numbers are dropped.
        retry_after_s=proto.retry_after_s if 0.0 <= proto.retry_after_s < math.inf else 0.0,
    )


def sampling_to_proto(request: SamplingRequest) -> session_pb2.Sampling:
    """Convert a request to a message. Settings whose value is None are left out."""
    proto = session_pb2.Sampling(stop=request.stop)
    for name in _SETTINGS:
        value = getattr(request, name)
        if value is not None:
            setattr(proto, name, value)
    return proto


def sampling_from_proto(proto: session_pb2.Sampling, *, field: str = "sampling") -> SamplingRequest:
    """Convert a message to a request. If a value is invalid, `InvalidArgument` is raised with a
    field name that starts with `field`.
    """

    given = {each.name: value for each, value in proto.ListFields() if each.name != "stop"}
    try:
        return SamplingRequest(**given, stop=tuple(proto.stop[: MAX_STOPS + 1]))
    except InvalidArgument as error:
        raise InvalidArgument(f"{field}.{error.message}", field=f"{field}.{error.field}") from None


def policy_to_proto(policy: ChunkPolicy) -> session_pb2.ChunkPolicy:
    """Convert a chunk policy to a message."""
    return session_pb2.ChunkPolicy(first=policy.first, ramp=policy.ramp, steady=policy.steady)


def policy_from_proto(proto: session_pb2.ChunkPolicy) -> ChunkPolicy:
    """Convert a message to a chunk policy. Raises `InvalidArgument` if a size is out of range."""
    # Read one more size than allowed, so that the check below notices if there are too many.
    ramp = tuple(proto.ramp[: MAX_RAMP + 1])
    return checked_policy(ChunkPolicy(first=proto.first, ramp=ramp, steady=proto.steady))


def checked_policy(policy: ChunkPolicy) -> ChunkPolicy:
    """Return the policy. Raises `InvalidArgument` if it can't be represented in a message."""
    sizes = (policy.first, *policy.ramp, policy.steady)
    if len(policy.ramp) > MAX_RAMP or not all(map(_is_chunk_size, sizes)):
        raise InvalidArgument(
            f"chunk_policy: first, steady and at most {MAX_RAMP} ramp sizes must each be from 1 "
            f"to {MAX_FRAMES_PER_CHUNK} frames",
            field="chunk_policy",
        )
    return policy


def _is_chunk_size(size: object) -> bool:
    whole = isinstance(size, Integral) and not isinstance(size, bool)
    return whole and 1 <= int(size) <= MAX_FRAMES_PER_CHUNK  # type: ignore[call-overload]


def _cut(text: str, most_bytes: int) -> str:
    """Return the text. If it takes more than `most_bytes` bytes in UTF-8, the middle is removed."""
    most = most_bytes
    while len((cut := shortened(text, most)).encode(errors="replace")) > most_bytes:
        most = most * 3 // 4
    return cut
