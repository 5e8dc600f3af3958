"""The checksum at the end of every message between services.

TCP's checksum misses about one in ten thousand corrupted segments, and the memory of proxies and
network cards isn't protected at all. A flipped byte in a codec frame would be audible. TLS would
detect it, but TLS is optional. On a link, the checksum follows the message. Everywhere else, it is
the last field of the message. Its field number is unknown to generated code, which therefore
ignores it, so any client can read the services' messages. A client that uses only generated code
doesn't send a checksum, but stages accept its session requests anyway.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from operator import eq
from typing import TypeVar

from google.protobuf.message import Message

from antiphon.errors import DataLoss, Unavailable

CHECKSUM_BYTES = 4
# The tag with the highest possible field number, encoded as a varint.
_TAG = b"\xfd\xff\xff\xff\x0f"
_MESSAGE = TypeVar("_MESSAGE")
_PROTO = TypeVar("_PROTO", bound=Message)


class CorruptMessage:
    """Stands for a received message that was corrupted.

    If a message couldn't be parsed, gRPC itself would yield None or fail with an unknown status.
    """


def checksum_of(*pieces: bytes | memoryview) -> bytes:
    """Return the checksum of a message that consists of several pieces. The checksum is zlib's
    CRC-32 in little-endian order.
    """
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return checksum.to_bytes(CHECKSUM_BYTES, "little")


def checked(raw: bytes) -> int:
    """Return the length of a message without its checksum. Raises `DataLoss` if the checksum
    doesn't match.
    """
    end = len(raw) - CHECKSUM_BYTES
    if end < 0 or checksum_of(memoryview(raw)[:end]) != raw[end:]:
        raise DataLoss("received a corrupt message")
    return end


def to_bytes(message: Message) -> bytes:
    """Serialize a message and append its checksum. This is the format that links use."""
    data = message.SerializeToString()
    return data + checksum_of(data)


def to_field(message: Message) -> bytes:
    """Serialize a message with a checksum as its last field. Generated code ignores this field."""
    data = message.SerializeToString() + _TAG
    return data + checksum_of(data)


def reader(kind: type[_PROTO]) -> Callable[[bytes], _PROTO | CorruptMessage]:
    """Return a deserializer for messages that were serialized by `to_bytes`."""
    return _reader(kind, b"")


def field_reader(kind: type[_PROTO]) -> Callable[[bytes], _PROTO | CorruptMessage]:
    """Return a deserializer for messages that were serialized by `to_field`."""
    return _reader(kind, _TAG)


def _reader(kind: type[_PROTO], ending: bytes) -> Callable[[bytes], _PROTO | CorruptMessage]:
    def read(raw: bytes) -> _PROTO | CorruptMessage:
        try:
            end = checked(raw)
        except DataLoss:
            return CorruptMessage()
        return kind.FromString(raw[:end].removesuffix(ending))

    return read


def tolerant_reader(kind: type[_PROTO]) -> Callable[[bytes], _PROTO | CorruptMessage]:
    """Return a deserializer for messages that were serialized by `to_field`, or that have no
    checksum.
    """
    strict = field_reader(kind)

    def read(raw: bytes) -> _PROTO | CorruptMessage:
        tag = raw[-len(_TAG) - CHECKSUM_BYTES : -CHECKSUM_BYTES]
        # The tag itself may have been corrupted, so a tag with a single wrong byte is still treated
        # as a checksum.
        if sum(map(eq, _TAG, tag)) < len(_TAG) - 1:
            return kind.FromString(raw)
        return strict(raw)

    return read


def intact(message: _MESSAGE | CorruptMessage) -> _MESSAGE:
    """Return the message. If it was corrupted, raises `Unavailable`, which is retryable."""
    if isinstance(message, CorruptMessage):
        raise Unavailable("received a corrupt message")
    return message


async def undamaged(messages: AsyncIterable[_MESSAGE | CorruptMessage]) -> AsyncIterator[_MESSAGE]:
    """Yield the messages of a stream. Raises the same error as `intact`."""
    async for message in messages:
        yield intact(message)
