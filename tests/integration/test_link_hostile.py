"""A peer that sends what no stage would: it costs the session that it is about, and no other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
import numpy as np
import pytest

from antiphon.runtime.engine import LoadedStage
from antiphon.transport.payload.transport import placed
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import RunningStage
from tests.integration.stage_session import Session, batch, codes_chunk, linked, opening

ErrorCode = session_pb2.ErrorCode
MOST = (1 << 64) - 1


@pytest.fixture
async def served() -> AsyncIterator[RunningStage]:
    async with running_stage(LoadedStage(FakeEngine(), FACTS), "code2wav") as running:
        yield running


def blob_of(*entries: tuple[str, str, tuple[int, ...], int]) -> bytes:
    """A blob whose header says what it likes and that has no tensor bytes."""
    header = msgspec.msgpack.encode([list(entries), {}])
    return (b"ATB1" + len(header).to_bytes(4, "little") + header).ljust(256, b"\0")


def in_place(data: bytes) -> chunk_pb2.Payload:
    return chunk_pb2.Payload(size_bytes=len(data), inline=data)


def scalar(chunk: chunk_pb2.Chunk) -> None:
    tensors = {"codes": np.array(7, np.uint16)}
    chunk.payload.CopyFrom(chunk_to_proto(Chunk("bad", "codes", tensors=tensors)).payload)


def empty_and_huge(chunk: chunk_pb2.Chunk) -> None:
    chunk.payload.CopyFrom(in_place(blob_of(("codes", "uint16", (0, 1 << 62, 1 << 62), 64))))


def long_and_empty(chunk: chunk_pb2.Chunk) -> None:
    chunk.payload.CopyFrom(in_place(blob_of(("codes", "uint16", (1 << 40, 0), 64))))


def lying_size(chunk: chunk_pb2.Chunk) -> None:
    chunk.payload.size_bytes = MOST


def absent_frames(chunk: chunk_pb2.Chunk) -> None:
    chunk.payload.CopyFrom(placed("grpc", MOST, (3).to_bytes(8, "little")))


def absent_slab(chunk: chunk_pb2.Chunk) -> None:
    slot = MOST.to_bytes(8, "little") + (1).to_bytes(8, "little")
    chunk.payload.CopyFrom(placed("shared_memory", MOST, slot))


def malformed_descriptor(chunk: chunk_pb2.Chunk) -> None:
    chunk.payload.CopyFrom(placed("grpc", 100, b"abc"))


def contradictory(chunk: chunk_pb2.Chunk) -> None:
    chunk.segment_finished = True


@pytest.mark.parametrize(
    "spoil",
    [
        scalar,
        empty_and_huge,
        long_and_empty,
        lying_size,
        absent_frames,
        absent_slab,
        malformed_descriptor,
        contradictory,
    ],
)
async def test_malformed_chunk_fails_its_own_session_when_others_share_the_link(
    served: RunningStage, spoil: Callable[[chunk_pb2.Chunk], None]
) -> None:
    async with linked(served) as link:
        bad, good = Session(served, "bad"), Session(served, "good")
        for session in (bad, good):
            await session.send(*opening(session.id, windows={"codes": 100}))
            await session.opened()
        malformed = chunk_to_proto(codes_chunk("bad", 0, [1]))
        spoil(malformed)
        request = batch(codes_chunk("good", 0, [2]))
        request.batch.chunks.insert(0, malformed)
        await link.write(request)
        error = await bad.error()
        assert error.code == ErrorCode.ERROR_CODE_DATA_LOSS, error
        assert error.edge == "codes" or "blob" in error.message
        await link.write(batch(codes_chunk("good", 1, [3], end=True)))
        heard: list[float] = []
        while True:
            audio = await good.audio()
            heard += audio.tensors["samples"].tolist() if audio.tensors else []
            if audio.segment_finished:
                break
        assert heard == [2.0] * 4 + [3.0] * 4
        told = await stage_stub(served.channel).Describe(stage_pb2.DescribeRequest())
        (state,) = told.links
        assert state.connected
        assert state.counts["bytes.grpc"] < 10_000


async def test_producer_is_told_when_the_session_of_its_malformed_chunk_is_not_open(
    served: RunningStage,
) -> None:
    async with linked(served) as link:
        malformed = chunk_to_proto(codes_chunk("later", 0, [1]))
        lying_size(malformed)
        await link.write(
            stage_pb2.LinkRequest(batch=stage_pb2.ChunkBatch(chunks=[malformed], first=0))
        )
        while True:
            response = await link.read()
            assert isinstance(response, stage_pb2.LinkResponse)
            if response.HasField("refusal"):
                break
        refusal = response.refusal
        assert (refusal.session_id, refusal.edge) == ("later", "codes")
        assert refusal.error.code == ErrorCode.ERROR_CODE_DATA_LOSS


async def credit(link: object) -> stage_pb2.LinkCredit:
    """The next credit on a link."""
    while True:
        response = await link.read()  # type: ignore[attr-defined]
        assert isinstance(response, stage_pb2.LinkResponse), response
        if response.HasField("credit"):
            return response.credit


async def test_credit_goes_on_for_others_when_a_window_is_out_of_range(
    served: RunningStage,
) -> None:
    async with linked(served) as link:
        greedy, modest = Session(served, "greedy"), Session(served, "modest")
        await greedy.send(*opening("greedy", windows={"codes": MOST}))
        await link.write(batch(codes_chunk("greedy", 0, [1, 2])))
        error = await greedy.error()
        assert (error.code, error.field) == (
            ErrorCode.ERROR_CODE_INVALID_ARGUMENT,
            "windows.codes",
        )
        await modest.send(*opening("modest", windows={"codes": 4}))
        await modest.opened()
        await link.write(batch(codes_chunk("modest", 0, [1, 2])))
        granted = await credit(link)
        assert (granted.session_id, granted.positions) == ("modest", 6)


async def test_link_goes_on_when_its_producer_confirms_answers_that_were_never_given(
    served: RunningStage,
) -> None:
    async with linked(served) as link:
        session = Session(served, "s")
        await session.send(*opening("s", windows={"codes": 4}))
        await session.opened()
        request = batch(codes_chunk("s", 0, [1, 2]))
        request.batch.responses = MOST
        await link.write(request)
        assert (await credit(link)).positions == 6
        request = batch(codes_chunk("s", 1, [3], end=False))
        request.batch.responses = MOST
        await link.write(request)
        assert (await credit(link)).positions == 7


@pytest.mark.parametrize("name", ["link_id", "role", "address", "host_id", "boot_id"])
async def test_link_is_refused_when_a_name_in_its_hello_is_too_long(
    served: RunningStage, name: str
) -> None:
    call = stage_stub(served.channel).Link()
    hello = stage_pb2.LinkHello(**{"link_id": "up", name: "n" * 300})  # type: ignore[arg-type]
    await call.write(stage_pb2.LinkRequest(hello=hello))
    with pytest.raises(Exception, match=f"hello.{name}: "):
        await call.read()
    assert not (await stage_stub(served.channel).Describe(stage_pb2.DescribeRequest())).links
