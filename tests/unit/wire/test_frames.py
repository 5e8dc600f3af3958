from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from antiphon.errors import DataLoss
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.frames import Frame, as_frame, message_from_bytes, message_to_bytes

NUMBERS = st.integers(0, (1 << 64) - 1)


def proto(transfer: int, offset: int, total: int, data: bytes) -> bytes:
    frame = chunk_pb2.PayloadFrame(
        transfer=transfer, offset_bytes=offset, total_bytes=total, data=data
    )
    return stage_pb2.LinkRequest(frame=frame).SerializeToString()


@given(NUMBERS, NUMBERS, NUMBERS, st.lists(st.binary(max_size=300), min_size=1, max_size=4))
@settings(max_examples=500, deadline=None)
def test_frame_has_the_bytes_that_protobuf_reads_and_back(
    transfer: int, offset: int, total: int, pieces: list[bytes]
) -> None:
    data = b"".join(pieces)
    views = [memoryview(each) for each in pieces]
    written = message_to_bytes(Frame(transfer, offset, total, views))
    read = stage_pb2.LinkRequest.FromString(written).frame
    assert (read.transfer, read.offset_bytes, read.total_bytes) == (transfer, offset, total)
    assert read.data == data
    frame = as_frame(message_from_bytes(proto(transfer, offset, total, data)))
    assert frame is not None
    assert (frame.transfer, frame.offset_bytes, frame.total_bytes) == (transfer, offset, total)
    assert b"".join(frame.pieces) == data


@given(st.binary(max_size=80))
@settings(max_examples=3000, deadline=None)
@example(b"\x1a")
@example(b"\x1a\x02\x08")
@example(b"\x1a\x02\x2a\x05")
def test_request_is_refused_in_one_of_two_ways_when_bytes_are_arbitrary(data: bytes) -> None:
    for raw in (data, b"\x1a" + data, b"\x1a" + bytes([len(data)]) + data):
        try:
            message_from_bytes(raw)
        except (DataLoss, DecodeError):
            continue


def test_other_requests_are_protobufs_own() -> None:
    request = stage_pb2.LinkRequest(hello=stage_pb2.LinkHello(link_id="up"))
    assert message_from_bytes(message_to_bytes(request)) == request
    assert as_frame(request) is None
