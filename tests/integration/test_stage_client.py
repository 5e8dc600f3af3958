"""The clients of one stage, against a stage that runs an engine without a model."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import antiphon
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon_testkit.stage_harness import RunningStage
from tests.integration.stage_session import codes_chunk

AUDIO = session_pb2.SegmentOpen(segment=0, outputs=["audio"], last=True)


def codes(sequence: int, values: list[int], *, end: bool = False) -> chunk_pb2.Chunk:
    return chunk_to_proto(codes_chunk("anybody", sequence, values, end=end))


def heard(responses: list[session_pb2.SessionResponse]) -> list[float]:
    """The samples of all chunks."""
    chunks = [chunk_from_proto(each.chunk) for each in responses if each.HasField("chunk")]
    parts = [chunk.tensors["samples"] for chunk in chunks if chunk.tensors]
    return [float(sample) for sample in np.concatenate(parts)]


def kinds(responses: list[session_pb2.SessionResponse]) -> list[str | None]:
    """What came, without what a slow machine adds."""
    told = [each.WhichOneof("message") for each in responses]
    return [kind for kind in told if kind != "progress"]


async def test_stage_client_feeds_a_stage_and_reads_what_it_makes(served: RunningStage) -> None:
    async with antiphon.AsyncStageClient(served.address) as stage:
        described = await stage.describe()
        assert (described.role, await stage.health()) == (
            "code2wav",
            antiphon.ServingStatus.SERVING,
        )
        async with stage.session({"audio": ()}, session_id="mine") as session:
            assert session.session_id == "mine"
            await session.open_segment(AUDIO)
            await session.send_chunk(codes(0, [5]))
            await session.send_chunk(codes(1, [6], end=True))
            session.finish()
            responses = [response async for response in session]
    assert kinds(responses)[:2] == ["opened", "segment_opened"]
    assert kinds(responses)[-1] == "report"
    assert heard(responses) == [5.0] * 4 + [6.0] * 4


async def test_blocking_stage_client_is_the_same(served: RunningStage) -> None:
    def run() -> list[session_pb2.SessionResponse]:
        with antiphon.StageClient(served.address) as stage:
            assert stage.describe().role == "code2wav"
            assert stage.health() is antiphon.ServingStatus.SERVING
            with stage.session({"audio": ()}) as session:
                session.open_segment(AUDIO)
                session.send_chunk(codes(0, [5], end=True))
                session.finish()
                return list(session)

    responses = await asyncio.to_thread(run)
    assert heard(responses) == [5.0] * 4
    assert kinds(responses)[-1] == "report"


async def test_stage_client_cancels_a_segment_and_is_told(served: RunningStage) -> None:
    async with (
        antiphon.AsyncStageClient(served.address) as stage,
        stage.session({"audio": ()}) as session,
    ):
        await session.open_segment(AUDIO)
        await session.cancel_segment()
        session.finish()
        responses = [response async for response in session]
    assert kinds(responses)[-1] == "report"
    assert responses[-1].report.finish_reason == chunk_pb2.FINISH_REASON_CANCELLED
    assert served.stage.table.open_segments == 0


async def test_stage_client_raises_what_a_session_failed_with(served: RunningStage) -> None:
    async with antiphon.AsyncStageClient(served.address) as stage:
        async with stage.session({"noise": ()}) as session:
            with pytest.raises(InvalidArgument, match="noise"):
                async for _ in session:
                    pass
        unopened = stage.session({"audio": ()})
        with pytest.raises(FailedPrecondition, match="use it as a context manager"):
            await unopened.send_chunk(codes(0, [5]))
        with pytest.raises(InvalidArgument, match=r"edges\.audio"):
            stage.session({"audio": "somewhere"})
        with pytest.raises(InvalidArgument, match="chunk"):
            async with stage.session({"audio": ()}) as session:
                await session.send_chunk("codes")  # type: ignore[arg-type]
