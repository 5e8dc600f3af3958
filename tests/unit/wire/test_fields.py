"""Fields counted in bytes before they become a message."""

from __future__ import annotations

import tracemalloc

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidArgument
from antiphon.v1 import session_pb2, speech_pb2
from antiphon.wire.fields import check_fields

Request = speech_pb2.GenerateRequest
Message, Part = speech_pb2.Message, speech_pb2.Part


def check(message: speech_pb2.GenerateRequest | bytes, most: int) -> None:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    check_fields(data, Request.DESCRIPTOR, most)


# The request, and its fields by hand: those of messages within, and what holds them.
COUNTED = [
    (Request(), 0),
    (Request(model="m", voice="v" * 500), 2),
    (Request(messages=[Message(role="user", parts=[Part(text="a"), Part(text="b")])]), 6),
    (Request(modalities=["text"] * 50), 50),
    (Request(sampling={"thinker": session_pb2.Sampling(stop=["a"] * 7, seed=3)}), 11),
    (Request(chunk_policy=session_pb2.ChunkPolicy(first=1, ramp=[1] * 30)), 33),
]


@pytest.mark.parametrize(("message", "fields"), COUNTED)
def test_fields_are_counted_wherever_they_are(
    message: speech_pb2.GenerateRequest, fields: int
) -> None:
    check(message, fields)
    if fields:
        with pytest.raises(InvalidArgument, match="max_body_values"):
            check(message, fields - 1)


def test_fields_are_refused_before_anything_is_made_of_them() -> None:
    data = Request(modalities=["text"] * 1_000_000).SerializeToString()
    tracemalloc.start()
    with pytest.raises(InvalidArgument):
        check(data, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@given(st.binary(max_size=60))
def test_fields_of_any_bytes_are_counted_or_refused(data: bytes) -> None:
    try:
        check(data, 1000)
    except InvalidArgument:
        return
    # What passes is at most refused by the parser, for what only it knows.
    try:
        Request.FromString(data)
    except DecodeError:
        return


@pytest.mark.parametrize(
    "data",
    [b"\x0a", b"\x0a\x05ab", b"\xff" * 11, b"\x0b", b"\x08", b"\x0d\x01", b"\x12\x03\x0a\x7fa"],
)
def test_fields_of_what_is_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        check(data, 1000)
