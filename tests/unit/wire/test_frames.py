from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from antiphon.errors import DataLoss
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire import checksum
from antiphon.wire.checksum import CorruptMessage, checksum_of
from antiphon.wire.frames import Frame, as_frame, message_from_bytes, message_to_bytes

NUMBERS = st.integers(0, (1 << 64) - 1)


def proto(transfer: int, offset: int, total: int, data: bytes) -> bytes:
    frame = chunk_pb2.PayloadFrame(
        transfer=transfer, offset_bytes=offset, total_bytes=total, data=data
    )
    return checksum.to_bytes(stage_pb2.LinkRequest(frame=frame))


@given(NUMBERS, NUMBERS, NUMBERS, st.lists(st.binary(max_size=300), min_size=1, max_size=4))
@settings(max_examples=500)
def test_frame_has_the_bytes_that_protobuf_reads_and_back(
    transfer: int, offset: int, total: int, pieces: list[bytes]
) -> None:
    data = b"".join(pieces)
    views = [memoryview(each) for each in pieces]
    written = message_to_bytes(Frame(transfer, offset, total, views))
    read = stage_pb2.LinkRequest.FromString(written[: checksum.checked(written)]).frame
    assert (read.transfer, read.offset_bytes, read.total_bytes) == (transfer, offset, total)
    assert read.data == data
    came = message_from_bytes(proto(transfer, offset, total, data))
    assert not isinstance(came, CorruptMessage)
    frame = as_frame(came)
    assert frame is not None
    assert (frame.transfer, frame.offset_bytes, frame.total_bytes) == (transfer, offset, total)
    assert b"".join(frame.pieces) == data


@given(st.binary(max_size=80))
@settings(max_examples=3000)
@example(b"\x1a")
@example(b"\x1a\x02\x08")
@example(b"\x1a\x02\x2a\x05")
@example(b"\x22\x01x\x08\x01")
@example(b"\x08\x01\x22\x00")
@example(b"\x0d\x22\x22\x22\x22\x22\x00")
def test_arbitrary_bytes_are_read_as_protobuf_reads_them_or_refused(data: bytes) -> None:
    for raw in (data, b"\x1a" + data, b"\x1a" + bytes([len(data)]) + data):
        assert_read_alike(raw)


@given(NUMBERS, NUMBERS, st.binary(max_size=40), st.integers(0, 80), st.integers(1, 255))
@settings(max_examples=1000)
def test_damaged_frame_is_read_as_protobuf_reads_it_or_refused(
    transfer: int, offset: int, data: bytes, at: int, flip: int
) -> None:
    frame = chunk_pb2.PayloadFrame(
        transfer=transfer, offset_bytes=offset, total_bytes=99, data=data
    )
    raw = bytearray(stage_pb2.LinkRequest(frame=frame).SerializeToString())
    raw[at % len(raw)] ^= flip
    assert_read_alike(bytes(raw))
    assert_read_alike(bytes(raw[: at % len(raw)]))


def assert_read_alike(raw: bytes) -> None:
    """What protobuf refuses is refused here; what is taken here says the same as there."""
    try:
        ours = message_from_bytes(raw + checksum_of(raw))
    except (DataLoss, DecodeError):
        return
    assert not isinstance(ours, CorruptMessage)
    theirs = stage_pb2.LinkRequest.FromString(raw)
    frame = as_frame(ours)
    if frame is None:
        assert ours == theirs
        return
    assert theirs.HasField("frame")
    expected = theirs.frame
    assert (frame.transfer, frame.offset_bytes, frame.total_bytes, frame.size_bytes) == (
        expected.transfer,
        expected.offset_bytes,
        expected.total_bytes,
        len(expected.data),
    )
    assert b"".join(frame.pieces) == expected.data


@pytest.mark.parametrize(
    "raw",
    [
        b"\x1a\x04\x08\x01\x22\x05",  # data that is longer than the message
        b"\x1a\x05\x22\x01x\x08\x01",  # a number behind the data
        b"\x1a\x02\x08",  # cut in a tag's number
        b"\x1a" + b"\xff" * 9 + b"\x7f",  # a size that never ends
        b"\x1a\x80",
        b"\x1a\x0d\x2a\x81" + b"\x80" * 9 + b"\x00x",  # a size of one byte, written in 11
    ],
)
def test_frame_that_no_writer_writes_is_refused(raw: bytes) -> None:
    with pytest.raises((DataLoss, DecodeError)):
        message_from_bytes(raw + checksum_of(raw))


def test_other_requests_are_protobufs_own() -> None:
    request = stage_pb2.LinkRequest(hello=stage_pb2.LinkHello(link_id="up"))
    assert message_from_bytes(message_to_bytes(request)) == request
    assert as_frame(request) is None
