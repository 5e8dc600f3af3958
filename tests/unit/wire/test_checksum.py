from __future__ import annotations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from antiphon.errors import DataLoss, Unavailable
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.wire import checksum
from antiphon.wire.checksum import CHECKSUM_BYTES, CorruptMessage, checked, checksum_of, intact
from antiphon.wire.frames import Frame, message_from_bytes, message_to_bytes

Response = session_pb2.SessionResponse
read = checksum.field_reader(Response)
read_any = checksum.tolerant_reader(Response)
TAG = checksum.to_field(session_pb2.SessionResponse())[:-CHECKSUM_BYTES]


def response(data: bytes) -> session_pb2.SessionResponse:
    chunk = chunk_pb2.Chunk(session_id="s", payload=chunk_pb2.Payload(inline=data))
    return session_pb2.SessionResponse(chunk=chunk)


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_message_is_read_as_it_was_written(data: bytes) -> None:
    assert read(checksum.to_field(response(data))) == response(data)
    assert checksum.reader(Response)(checksum.to_bytes(response(data))) == response(data)
    assert read_any(checksum.to_field(response(data))) == response(data)


@given(st.binary(max_size=300), st.integers(0), st.integers(1, 255))
@settings(max_examples=1000)
def test_whatever_byte_is_changed_the_message_is_damaged(data: bytes, at: int, flip: int) -> None:
    raw = bytearray(checksum.to_field(response(data)))
    raw[at % len(raw)] ^= flip
    for reads in (read, read_any):
        assert isinstance(reads(bytes(raw)), CorruptMessage)


@given(st.binary(max_size=300), st.integers(0), st.integers(1, 255))
@settings(max_examples=500)
def test_whatever_byte_of_a_frame_is_changed_it_is_damaged(data: bytes, at: int, flip: int) -> None:
    raw = bytearray(message_to_bytes(Frame(7, 1, 400, (memoryview(data),))))
    raw[at % len(raw)] ^= flip
    assert isinstance(message_from_bytes(bytes(raw)), CorruptMessage)


@given(st.binary(max_size=40))
@example(b"")
def test_message_of_who_knows_no_checksums_is_read(data: bytes) -> None:
    assume(not data[:-CHECKSUM_BYTES].endswith(TAG))
    raw = response(data).SerializeToString()
    assert read_any(raw) == response(data)
    assert isinstance(read(raw), CorruptMessage)


def test_who_knows_no_checksums_reads_the_message() -> None:
    raw = checksum.to_field(response(b"samples"))
    assert session_pb2.SessionResponse.FromString(raw).chunk == response(b"samples").chunk


def test_checksum_of_pieces_is_that_of_the_whole() -> None:
    assert checksum_of(b"ab", memoryview(b"c"), b"") == checksum_of(b"abc")
    assert checked(b"abc" + checksum_of(b"abc")) == len(b"abc")
    with pytest.raises(DataLoss, match="corrupt"):
        checked(b"abd" + checksum_of(b"abc"))


def test_damage_is_an_error_that_may_be_asked_again() -> None:
    assert intact("whole") == "whole"
    with pytest.raises(Unavailable, match="corrupt"):
        intact(CorruptMessage())
