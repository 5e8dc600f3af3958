"""Serializes link requests, with a fast path for payload frames.

A frame is encoded in the same way in which protobuf encodes `LinkRequest.frame`. However, its bytes
are copied only once when it is written, and not at all when it is read. With protobuf, there would
be three more copies when writing and two when reading. All other requests are serialized by
protobuf. Every message is followed by a checksum (`checksum.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from antiphon.errors import DataLoss
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2, stage_pb2_grpc
from antiphon.wire import checksum
from antiphon.wire.checksum import CorruptMessage
from antiphon.wire.stubs import STAGE_SERVICE

# Each tag consists of a field number and a wire type.
_FRAME, _DATA = (
    stage_pb2.LinkRequest.FRAME_FIELD_NUMBER << 3 | 2,
    chunk_pb2.PayloadFrame.DATA_FIELD_NUMBER << 3 | 2,
)


@dataclass(frozen=True, slots=True)
class Frame:
    """Part of a payload that has a total size of `total_bytes` bytes. `pieces` contains the bytes
    of the frame, in order.
    """

    transfer: int
    offset_bytes: int
    total_bytes: int
    pieces: Sequence[memoryview]

    @property
    def size_bytes(self) -> int:
        """The number of bytes in the frame."""
        return sum(len(piece) for piece in self.pieces)


LinkMessage = stage_pb2.LinkRequest | Frame
CameOnLink = LinkMessage | CorruptMessage
LinkCall = grpc.aio.StreamStreamCall[LinkMessage, stage_pb2.LinkResponse | CorruptMessage]


def message_to_bytes(message: LinkMessage) -> bytes:
    """Serialize a request."""
    if isinstance(message, stage_pb2.LinkRequest):
        return checksum.to_bytes(message)
    numbers = chunk_pb2.PayloadFrame(
        transfer=message.transfer,
        offset_bytes=message.offset_bytes,
        total_bytes=message.total_bytes,
    )
    size = message.size_bytes
    inner = numbers.SerializeToString() + bytes([_DATA]) + _varint(size)
    head = bytes([_FRAME]) + _varint(len(inner) + size) + inner
    return b"".join((head, *message.pieces, checksum.checksum_of(head, *message.pieces)))


def message_from_bytes(raw: bytes) -> CameOnLink:
    """Parse a request. If it is a frame, its only piece is a view of `raw`."""
    try:
        end = checksum.checked(raw)
    except DataLoss:
        return CorruptMessage()
    if not end or raw[0] != _FRAME:
        return stage_pb2.LinkRequest.FromString(raw[:end])
    data = memoryview(raw)[:end]
    size, at = _read_varint(data, 1)
    if at + size != end:
        return stage_pb2.LinkRequest.FromString(raw[:end])
    return _read_frame(data, at)


def as_frame(message: LinkMessage) -> Frame | None:
    """Return the message as a frame, or None if it isn't one. It may have been parsed by either
    parser.
    """
    if isinstance(message, Frame):
        return message
    if not message.HasField("frame"):
        return None
    return _frame(message.frame, memoryview(message.frame.data))


def link_call(channel: grpc.aio.Channel, written: Callable[[int], None]) -> LinkCall:
    """Open a `Link` stream. `written` is called with the size of each message that is written."""

    def serialize(message: LinkMessage) -> bytes:
        data = message_to_bytes(message)
        written(len(data))
        return data

    call: LinkCall = channel.stream_stream(
        f"/{STAGE_SERVICE}/Link",
        request_serializer=serialize,
        response_deserializer=checksum.reader(stage_pb2.LinkResponse),
    )()
    return call


def add_stage_service(
    servicer: stage_pb2_grpc.StageServiceServicer, server: grpc.aio.Server
) -> None:
    """Register the service with checksums. For `Link`, this avoids the copies that protobuf would
    make.

    gRPC first looks for methods that were registered by name, and then for generic handlers. If
    there are several, the last registration by name and the first generic handler are used. Older
    versions of gRPC support only generic handlers.
    """
    handlers: dict[str, Any] = {
        "Link": grpc.stream_stream_rpc_method_handler(
            servicer.Link,
            request_deserializer=message_from_bytes,
            response_serializer=checksum.to_bytes,
        ),
        "RunSession": grpc.stream_stream_rpc_method_handler(
            servicer.RunSession,
            request_deserializer=checksum.tolerant_reader(session_pb2.SessionRequest),
            response_serializer=checksum.to_field,
        ),
        "RunSessions": grpc.stream_stream_rpc_method_handler(
            servicer.RunSessions,
            request_deserializer=checksum.field_reader(stage_pb2.LineRequest),
            response_serializer=checksum.to_field,
        ),
        "WatchLoad": grpc.unary_stream_rpc_method_handler(
            servicer.WatchLoad,
            request_deserializer=stage_pb2.WatchLoadRequest.FromString,
            response_serializer=checksum.to_field,
        ),
        "Describe": grpc.unary_unary_rpc_method_handler(
            servicer.Describe,
            request_deserializer=stage_pb2.DescribeRequest.FromString,
            response_serializer=checksum.to_field,
        ),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(STAGE_SERVICE, handlers),)
    )
    stage_pb2_grpc.add_StageServiceServicer_to_server(servicer, server)
    server.add_registered_method_handlers(STAGE_SERVICE, handlers)


def _read_frame(data: memoryview, at: int) -> Frame:
    """Parse a frame whose fields are in the usual order. Any other order is handled by protobuf."""
    numbers = at
    while at < len(data) and data[at] != _DATA:
        _, at = _read_varint(data, at + 1)
    if at == len(data):
        frame = stage_pb2.LinkRequest.FromString(bytes(data)).frame
        return _frame(frame, memoryview(frame.data))
    head = chunk_pb2.PayloadFrame.FromString(bytes(data[numbers:at]))
    size, at = _read_varint(data, at + 1)
    if at + size != len(data):
        raise DataLoss("link: a frame has a different size than it specifies")
    return _frame(head, data[at:])


def _frame(proto: chunk_pb2.PayloadFrame, data: memoryview) -> Frame:
    return Frame(proto.transfer, proto.offset_bytes, proto.total_bytes, (data,))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the varint that starts at `at`, and the index of the byte after it. Raises `DataLoss`
    if the varint is malformed.
    """
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise DataLoss("link: a request is malformed")
