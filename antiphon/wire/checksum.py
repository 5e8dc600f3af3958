"""The checksum that every message between services ends with.

TCP's own sum lets one damaged segment in some ten thousand pass, and memory of a proxy or of a
network card is under none at all; a flipped byte of a codec frame would be spoken. TLS would
notice, and is not everybody's. On a link the checksum follows the message. Elsewhere it is the
last field of it, one that generated code does not know and skips, so that everybody reads what
services write; who has only generated code writes none, and a stage takes such requests of a
session.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from operator import eq
from typing import TypeVar

from google.protobuf.message import Message

from antiphon.errors import DataLoss, Unavailable

CHECKSUM_BYTES = 4
# Number and wire type of the largest field there is, as a varint.
_TAG = b"\xfd\xff\xff\xff\x0f"
_MESSAGE = TypeVar("_MESSAGE")
_PROTO = TypeVar("_PROTO", bound=Message)


class CorruptMessage:
    """In the place of a message that came otherwise than it was sent.

    gRPC puts None there, or an unknown status, when a message cannot be read.
    """


def checksum_of(*pieces: bytes | memoryview) -> bytes:
    """What ends a message of these pieces: their CRC-32, as in zlib, the lowest byte first."""
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return checksum.to_bytes(CHECKSUM_BYTES, "little")


def checked(raw: bytes) -> int:
    """Where a message ends and its checksum begins. Raises `DataLoss` when it has none, or that of
    another message."""
    end = len(raw) - CHECKSUM_BYTES
    if end < 0 or checksum_of(memoryview(raw)[:end]) != raw[end:]:
        raise DataLoss("a message came damaged")
    return end


def to_bytes(message: Message) -> bytes:
    """A message and its checksum, as two services talk to each other on a link."""
    data = message.SerializeToString()
    return data + checksum_of(data)


def to_field(message: Message) -> bytes:
    """A message with its checksum as its last field, which generated code skips."""
    data = message.SerializeToString() + _TAG
    return data + checksum_of(data)


def reader(kind: type[_PROTO]) -> Callable[[bytes], _PROTO | CorruptMessage]:
    """Reads messages of a kind that `to_bytes` wrote."""
    return _reader(kind, b"")


def field_reader(kind: type[_PROTO]) -> Callable[[bytes], _PROTO | CorruptMessage]:
    """Reads messages of a kind that `to_field` wrote."""
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
    """Reads messages of a kind that `to_field` wrote, and those of who knows of no checksum."""
    strict = field_reader(kind)

    def read(raw: bytes) -> _PROTO | CorruptMessage:
        tag = raw[-len(_TAG) - CHECKSUM_BYTES : -CHECKSUM_BYTES]
        # The tag itself may be what was hit.
        if sum(map(eq, _TAG, tag)) < len(_TAG) - 1:
            return kind.FromString(raw)
        return strict(raw)

    return read


def intact(message: _MESSAGE | CorruptMessage) -> _MESSAGE:
    """A message as it was sent. Raises `Unavailable` for another: what was asked for may be asked
    for again."""
    if isinstance(message, CorruptMessage):
        raise Unavailable("a message came damaged")
    return message


async def undamaged(messages: AsyncIterable[_MESSAGE | CorruptMessage]) -> AsyncIterator[_MESSAGE]:
    """The messages of a stream, each `intact`."""
    async for message in messages:
        yield intact(message)
