from __future__ import annotations

import math

import numpy as np
import pytest

from antiphon.errors import (
    ERROR_BY_CODE,
    AntiphonError,
    DataLoss,
    ErrorCode,
    Internal,
    InvalidArgument,
)
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.values.chunk import MAX_NAME, Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import ChunkPolicy, Delivery, FinishReason
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon.wire.convert import (
    MAX_ERROR_NAME_BYTES,
    MAX_ERROR_TEXT_BYTES,
    delivery_from_proto,
    delivery_to_proto,
    error_from_proto,
    error_to_proto,
    policy_from_proto,
    policy_to_proto,
    sampling_from_proto,
    sampling_to_proto,
)


@pytest.mark.parametrize("reason", [None, *FinishReason])
def test_chunk_round_trip(reason: FinishReason | None) -> None:
    chunk = Chunk(
        "s",
        "codes",
        segment=3,
        sequence=7,
        position=40,
        tensors={"codes": np.ones((2, 4), np.uint16)},
        segment_finished=reason is not None,
        finished=reason is not None,
        finish_reason=reason,
        prime=True,
    )
    back = chunk_from_proto(chunk_pb2.Chunk.FromString(chunk_to_proto(chunk).SerializeToString()))
    np.testing.assert_array_equal(back.tensors["codes"], chunk.tensors["codes"])
    assert (back.key, back.sequence, back.position) == (chunk.key, 7, 40)
    assert (back.finish_reason, back.finished, back.prime) == (reason, reason is not None, True)


def test_chunk_without_tensors_has_no_payload() -> None:
    proto = chunk_to_proto(Chunk("s", "codes"))
    assert not proto.HasField("payload")
    assert chunk_from_proto(proto).tensors == {}


@pytest.mark.parametrize(
    "proto",
    [
        chunk_pb2.Chunk(segment_finished=True),
        chunk_pb2.Chunk(finish_reason=chunk_pb2.FINISH_REASON_STOP),
        chunk_pb2.Chunk(payload=chunk_pb2.Payload(size_bytes=3, inline=b"ab")),
        chunk_pb2.Chunk(payload=chunk_pb2.Payload(placed=chunk_pb2.PayloadPlace())),
        chunk_pb2.Chunk(payload=chunk_pb2.Payload()),
    ],
)
def test_chunk_raises_data_loss_when_it_contradicts_itself(proto: chunk_pb2.Chunk) -> None:
    with pytest.raises(DataLoss):
        chunk_from_proto(proto)


@pytest.mark.parametrize("more", [-1, 1])
def test_chunk_raises_data_loss_when_its_payloads_size_lies(more: int) -> None:
    proto = chunk_to_proto(Chunk("s", "codes", tensors={"codes": np.ones((2, 4), np.uint16)}))
    proto.payload.size_bytes += more
    with pytest.raises(DataLoss, match="but specifies"):
        chunk_from_proto(proto)


@pytest.mark.parametrize("field", ["session_id", "edge"])
def test_chunk_raises_data_loss_when_a_name_is_too_long(field: str) -> None:
    for name, is_well in (("x" * MAX_NAME, True), ("x" * (MAX_NAME + 1), False)):
        proto = chunk_pb2.Chunk(**{field: name})
        if is_well:
            assert getattr(chunk_from_proto(proto), field) == name
            continue
        with pytest.raises(DataLoss, match="characters"):
            chunk_from_proto(proto)


@pytest.mark.parametrize("kind", list(ERROR_BY_CODE.values()))
def test_error_round_trip(kind: type[AntiphonError]) -> None:
    error = kind("why", field="a.b", stage="talker", edge="codes", retry_after_s=2.0)
    back = error_from_proto(error_to_proto(error))
    assert type(back) is kind
    assert vars(back) == vars(error)


def test_every_error_code_has_a_class_and_an_unknown_one_is_internal() -> None:
    assert set(ERROR_BY_CODE) == set(ErrorCode)
    assert isinstance(error_from_proto(session_pb2.SessionError(message="?")), Internal)


def test_sampling_round_trip_keeps_zero_apart_from_absent() -> None:
    for request in (
        SamplingRequest(),
        SamplingRequest(temperature=0.0, top_k=0, seed=0),
        SamplingRequest(top_logprobs=0),
        SamplingRequest(0.9, 50, 0.8, 1.05, (1 << 64) - 1, 7, ("stop",), 20),
    ):
        assert sampling_from_proto(sampling_to_proto(request)) == request


def test_sampling_error_names_the_whole_path() -> None:
    with pytest.raises(InvalidArgument) as caught:
        sampling_from_proto(session_pb2.Sampling(max_tokens=0), field="sampling.talker")
    assert caught.value.field == "sampling.talker.max_tokens"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("repetition_penalty", 0.0),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("seed", -1),
        ("top_logprobs", -1),
        ("top_logprobs", 21),
        ("stop", ("",)),
        ("stop", ("x",) * 17),
        ("stop", ("é" * 200,)),
    ],
)
def test_sampling_request_raises_when_out_of_range(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SamplingRequest(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name


def test_delivery_and_policy_round_trip() -> None:
    assert [delivery_from_proto(delivery_to_proto(each)) for each in Delivery] == list(Delivery)
    assert delivery_from_proto(session_pb2.DELIVERY_UNSPECIFIED) is None
    policy = ChunkPolicy(first=1, ramp=(2, 4), steady=9)
    assert policy_from_proto(policy_to_proto(policy)) == policy
    with pytest.raises(InvalidArgument) as caught:
        delivery_from_proto(99)  # type: ignore[arg-type]
    assert caught.value.field == "delivery"


@pytest.mark.parametrize(
    "proto",
    [
        session_pb2.ChunkPolicy(first=1, ramp=[1] * 64, steady=1),
        session_pb2.ChunkPolicy(first=65536, ramp=[65536], steady=65536),
    ],
)
def test_policy_at_its_bounds_is_taken(proto: session_pb2.ChunkPolicy) -> None:
    assert policy_to_proto(policy_from_proto(proto)) == proto


@pytest.mark.parametrize(
    "proto",
    [
        session_pb2.ChunkPolicy(first=1, ramp=[1] * 65, steady=1),
        session_pb2.ChunkPolicy(first=0, steady=1),
        session_pb2.ChunkPolicy(first=1, steady=0),
        session_pb2.ChunkPolicy(first=1, ramp=[1, 0], steady=1),
        session_pb2.ChunkPolicy(first=65537, steady=1),
        session_pb2.ChunkPolicy(first=1, steady=65537),
        session_pb2.ChunkPolicy(first=1, ramp=[65537], steady=1),
    ],
)
def test_policy_out_of_bounds_is_refused(proto: session_pb2.ChunkPolicy) -> None:
    with pytest.raises(InvalidArgument) as caught:
        policy_from_proto(proto)
    assert caught.value.field == "chunk_policy"


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0])
def test_retry_that_makes_no_sense_is_none(seconds: float) -> None:
    proto = session_pb2.SessionError(
        code=session_pb2.ERROR_CODE_UNAVAILABLE, message="later", retry_after_s=seconds
    )
    assert error_from_proto(proto).retry_after_s == 0.0


def test_texts_of_an_error_are_bounded_in_bytes() -> None:
    """They ride in metadata, which is bounded in bytes: most letters have more than one."""
    long = InvalidArgument("\U0001f3b5" * 2000, field="\u00f6" * 250, stage="\u97f3" * 200)
    proto = error_to_proto(long)
    assert 0 < len(proto.message.encode()) <= MAX_ERROR_TEXT_BYTES
    for name in (proto.field, proto.stage):
        assert 0 < len(name.encode()) <= MAX_ERROR_NAME_BYTES
    short = InvalidArgument("\U0001f3b5" * 200, field="\u00f6" * 100)
    assert error_to_proto(short).message == short.message
    assert error_to_proto(short).field == short.field
