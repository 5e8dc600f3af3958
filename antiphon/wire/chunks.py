"""Converts chunks to and from proto messages.

When a message is converted to a chunk, everything that proto types can't guarantee is validated,
such as flags and the payload size. If a chunk is malformed, `DataLoss` is raised.
"""

from __future__ import annotations

from antiphon.errors import DataLoss
from antiphon.v1 import chunk_pb2
from antiphon.values.chunk import MAX_NAME, Chunk
from antiphon.wire import blob
from antiphon.wire.convert import finish_reason_from_proto, finish_reason_to_proto


def chunk_to_proto(chunk: Chunk) -> chunk_pb2.Chunk:
    """Convert a chunk to a message with inline tensors."""
    proto = chunk_pb2.Chunk()
    put_chunk(chunk, proto)
    return proto


def put_chunk(chunk: Chunk, proto: chunk_pb2.Chunk) -> None:
    """Write a chunk with inline tensors to an empty message."""
    _put_address(chunk, proto)
    if chunk.tensors:
        data = blob.encode(chunk.tensors)
        payload = proto.payload
        payload.inline = data
        payload.size_bytes = len(data)


def address_to_proto(chunk: Chunk) -> chunk_pb2.Chunk:
    """Convert a chunk to a message without its tensors. A transport then adds their location."""
    proto = chunk_pb2.Chunk()
    _put_address(chunk, proto)
    return proto


def _put_address(chunk: Chunk, proto: chunk_pb2.Chunk) -> None:
    proto.session_id = chunk.session_id
    proto.edge = chunk.edge
    proto.sequence = chunk.sequence
    proto.position = chunk.position
    proto.segment = chunk.segment
    if chunk.finish_reason is not None:
        proto.finish_reason = finish_reason_to_proto(chunk.finish_reason)
    if chunk.segment_finished:
        proto.segment_finished = True
    if chunk.finished:
        proto.finished = True
    if chunk.prime:
        proto.prime = True


def chunk_from_proto(proto: chunk_pb2.Chunk, payload: bytes | memoryview | None = None) -> Chunk:
    """Convert a message to a chunk whose tensors are read-only views. Raises `DataLoss` if the
    message is malformed.

    `payload` is the blob received through a transport, or None if the tensors are inline.
    """
    if max(len(proto.session_id), len(proto.edge)) > MAX_NAME:
        raise DataLoss(f"chunk: session_id and edge must have at most {MAX_NAME} characters each")
    reason = finish_reason_from_proto(proto.finish_reason)
    if proto.segment_finished != (reason is not None):
        raise DataLoss(
            f"{proto.edge}: segment_finished and finish_reason contradict each other",
            edge=proto.edge,
        )
    return Chunk(
        session_id=proto.session_id,
        edge=proto.edge,
        segment=proto.segment,
        sequence=proto.sequence,
        position=proto.position,
        tensors=blob.decode(inline_bytes(proto) if payload is None else payload),
        segment_finished=proto.segment_finished,
        finished=proto.finished,
        finish_reason=reason,
        prime=proto.prime,
    )


def inline_bytes(proto: chunk_pb2.Chunk) -> bytes:
    """Return the bytes of the payload, or b"" if there is none. Raises `DataLoss` if they aren't
    inline.
    """
    if not proto.HasField("payload"):
        return b""
    location = proto.payload.WhichOneof("location")
    if location != "inline":
        raise DataLoss(
            f"{proto.edge}: the payload uses {location}, which was not negotiated", edge=proto.edge
        )
    data = proto.payload.inline
    if len(data) != proto.payload.size_bytes:
        raise DataLoss(
            f"{proto.edge}: the payload has {len(data)} bytes, but specifies "
            f"{proto.payload.size_bytes}",
            edge=proto.edge,
        )
    return data
