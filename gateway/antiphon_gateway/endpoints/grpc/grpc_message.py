"""Parses gRPC messages from untrusted clients. Before a message is parsed, its fields are
counted.
"""

from __future__ import annotations

from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from antiphon.errors import InvalidArgument
from antiphon.wire.fields import check_fields
from antiphon_gateway.threads import SizedThreads

M = TypeVar("M", bound=Message)
_THREADS = SizedThreads("grpc-fields")


async def read_message(kind: type[M], data: bytes, most_fields: int, counted_here_bytes: int) -> M:
    """Parse a message. If the message is larger than `counted_here_bytes`, its fields are counted
    on a separate thread.

    Raises `InvalidArgument` if the message has too many fields or isn't valid.
    """
    described = cast(Descriptor, kind.DESCRIPTOR)
    if len(data) <= counted_here_bytes:
        check_fields(data, described, most_fields)
    else:
        await _THREADS.run(len(data), check_fields, data, described, most_fields)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"the request is not a valid {described.name} message") from error
