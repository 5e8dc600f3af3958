"""The checksum at the end of every message between services.

TCP's checksum misses about one damaged segment in ten thousand, and memory in proxies and network
cards has none. A flipped byte of a codec frame would be audible. TLS would detect it, but is
optional. On a link, the checksum follows the message. Elsewhere it is the message's last field,
whose number generated code does not know and skips. So any client can read the services' messages.
A client with only generated code sends no checksum, and a stage accepts its session requests.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from operator import eq
from typing import TypeVar

from google.protobuf.message import Message

from antiphon.errors import DataLoss, Unavailable

CHECKSUM_BYTES = 4
# Tag of the largest possible field number, as a varint.
_TAG = b"\xfd\xff\xff\xff\x0f"
_MESSAGE = TypeVar("_MESSAGE")
_PROTO = TypeVar("_PROTO", bound=Message)


class CorruptMessage:
    """Replaces a received message that was corrupted.

    gRPC itself would yield None or fail with an unknown status for a message that cannot be parsed.
    """


def checksum_of(*pieces: bytes | memoryview) -> bytes:
    """Return the checksum of a message in pieces: CRC-32 as in zlib, little endian."""
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return checksum.to_bytes(CHECKSUM_BYTES, "little")


def checked(raw: bytes) -> int:
    """Return the length of a message without its checksum. Raises `DataLoss` if it does not
    match."""
    end = len(raw) - CHECKSUM_BYTES
    if end < 0 or checksum_of(memoryview(raw)[:end]) != raw[end:]:
        raise DataLoss("a message came damaged")
    return end


def to_bytes(message: Message) -> bytes:
    """Serialize a message followed by its checksum, for links."""
    data = message.SerializeToString()
    return data + checksum_of(data)


def to_field(message: Message) -> bytes:
    """Serialize a message with its checksum as the last field, which generated code skips."""
    data = message.SerializeToString() + _TAG
    return data + checksum_of(data)


def reader(kind: type[_PROTO]) -> Callable[[bytes], _PROTO | CorruptMessage]:
    """Return a deserializer for messages of `to_bytes`."""
    return _reader(kind, b"")


def field_reader(kind: type[_PROTO]) -> Callable[[bytes], _PROTO | CorruptMessage]:
    """Return a deserializer for messages of `to_field`."""
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
    """Return a deserializer for messages of `to_field`, or without a checksum."""
    strict = field_reader(kind)

    def read(raw: bytes) -> _PROTO | CorruptMessage:
        tag = raw[-len(_TAG) - CHECKSUM_BYTES : -CHECKSUM_BYTES]
        # The tag itself may be corrupted, so one different byte still counts as a checksum.
        if sum(map(eq, _TAG, tag)) < len(_TAG) - 1:
            return kind.FromString(raw)
        return strict(raw)

    return read


def intact(message: _MESSAGE | CorruptMessage) -> _MESSAGE:
    """Return the message. Raises `Unavailable`, which is retryable, if it was corrupted."""
    if isinstance(message, CorruptMessage):
        raise Unavailable("a message came damaged")
    return message


async def undamaged(messages: AsyncIterable[_MESSAGE | CorruptMessage]) -> AsyncIterator[_MESSAGE]:
    """Yield the messages of a stream. Raises as `intact` does."""
    async for message in messages:
        yield intact(message)
