"""A stage on a real gRPC server, driven as the gateway and an upstream stage drive it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest

from antiphon.errors import ResourceExhausted
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.session.facts import ChunkArrived, SegmentRequested
from antiphon.runtime.session.instructions import Destination, End
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import SegmentKey
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.qwen3_omni.fake_engine import EXPLOSION, FACTS, POISON, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import LIMITS, RunningStage
from tests.integration.stage_session import Request, Session, batch, codes_chunk, linked, opening

pytestmark = pytest.mark.usefixtures("each_carrier")

ErrorCode = session_pb2.ErrorCode
GENEROUS_S = 120.0


def segment_with(**history: Any) -> session_pb2.SegmentOpen:
    return session_pb2.SegmentOpen(history=session_pb2.History(**history))


async def until_released(engine: FakeEngine, running: RunningStage, key: SegmentKey) -> None:
    assert await asyncio.to_thread(engine.released.get, timeout=GENEROUS_S) == key
    assert running.stage.table.open_segments == 0


async def test_session_streams_audio_when_chunks_come_on_its_own_stream(
    served: RunningStage,
) -> None:
    session = Session(served, "own")
    await session.send(*opening("own"))
    opened = await session.opened()
    assert opened.boot_id
    await session.send(Request(chunk=chunk_to_proto(codes_chunk("own", 0, [5, 6]))))
    audio = await session.audio()
    np.testing.assert_array_equal(audio.tensors["samples"], np.repeat([5.0, 6.0], 4))
    np.testing.assert_array_equal(audio.tensors["codes"][:, 0], [5, 6])
    await session.send(Request(chunk=chunk_to_proto(codes_chunk("own", 1, [7], end=True))))
    last = await session.audio()
    assert (last.sequence, last.position, last.segment_finished) == (1, 8, True)
    report = (await session.read("report")).report
    assert (report.input_positions, report.output_positions) == (3, 12)
    assert report.last_output_s >= report.first_output_s >= report.first_input_s > 0
    await session.call.done_writing()
    assert await session.call.read() is grpc.aio.EOF


async def test_chunks_are_held_and_delivered_when_they_come_before_the_session(
    served: RunningStage,
) -> None:
    async with linked(served) as link:
        await link.write(batch(codes_chunk("late", 0, [1]), codes_chunk("late", 1, [2], end=True)))
        session = Session(served, "late")
        await session.send(*opening("late"))
        await session.opened()
        samples = []
        while not (audio := await session.audio()).segment_finished:
            samples.append(audio.tensors["samples"])
        samples += [audio.tensors["samples"]] if audio.tensors else []
        np.testing.assert_array_equal(np.concatenate(samples), np.repeat([1.0, 2.0], 4))


async def test_bare_finish_gives_a_zero_output_finish(served: RunningStage) -> None:
    session = Session(served, "empty")
    await session.send(*opening("empty"))
    await session.opened()
    await session.send(Request(chunk=chunk_to_proto(codes_chunk("empty", 0, [], end=True))))
    audio = await session.audio()
    assert audio.segment_finished
    assert not audio.tensors
    assert (await session.read("report")).report.output_positions == 0


async def test_many_sessions_share_one_link(served: RunningStage) -> None:
    names = [f"many-{number}" for number in range(4)]
    sessions = [Session(served, name) for name in names]
    for session in sessions:
        await session.send(*opening(session.id))
        await session.opened()
    async with linked(served) as link:
        for sequence in range(20):
            await link.write(
                batch(*(codes_chunk(name, sequence, [sequence + 1]) for name in names))
            )
        await link.write(batch(*(codes_chunk(name, 20, [], end=True) for name in names)))
        for session in sessions:
            samples: list[float] = []
            while True:
                audio = await session.audio()
                samples += audio.tensors["samples"].tolist() if audio.tensors else []
                if audio.segment_finished:
                    break
            assert samples == np.repeat(np.arange(1.0, 21.0), 4).tolist()


async def test_all_facts_that_are_handled_together_take_effect(served: RunningStage) -> None:
    stage = served.stage
    outbox = stage.open(SessionRequest("together", {"audio": (Destination(),)}))
    turn = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
    stage.handle(
        SegmentRequested("together", turn),
        ChunkArrived(codes_chunk("together", 0, [1]), ""),
        ChunkArrived(codes_chunk("together", 1, [2], end=True), ""),
    )
    samples: list[float] = []
    async with asyncio.timeout(GENEROUS_S):
        async for reply in outbox:
            if isinstance(reply, Chunk):
                samples += reply.tensors["samples"].tolist() if reply.tensors else []
                if reply.segment_finished:
                    break
    assert samples == [1.0] * 4 + [2.0] * 4


async def test_cancelled_stream_frees_the_segment(served: RunningStage, engine: FakeEngine) -> None:
    session = Session(served, "gone")
    await session.send(*opening("gone"))
    await session.opened()
    await session.send(Request(chunk=chunk_to_proto(codes_chunk("gone", 0, [1]))))
    await session.audio()
    session.call.cancel()
    await until_released(engine, served, SegmentKey("gone", 0))
    assert not engine.segments


async def test_cancelled_stream_frees_the_segment_while_the_engine_is_in_a_step(
    served: RunningStage, engine: FakeEngine
) -> None:
    engine.gate.clear()
    session = Session(served, "busy")
    await session.send(*opening("busy"))
    await session.opened()
    await session.send(Request(chunk=chunk_to_proto(codes_chunk("busy", 0, [1]))))
    assert await asyncio.to_thread(engine.in_step.wait, GENEROUS_S)
    session.call.cancel()
    # The session is gone, and its slot free, while the engine still works for it.
    assert await served.stage.drain(GENEROUS_S)
    assert served.stage.table.session_count == served.stage.table.open_segments == 0
    assert engine.in_step.is_set()
    assert SegmentKey("busy", 0) in engine.segments
    engine.gate.set()
    await until_released(engine, served, SegmentKey("busy", 0))
    assert not engine.segments
    assert served.stage.table.tally.positions == {}


async def test_link_refuses_late_chunks_of_an_ended_session(served: RunningStage) -> None:
    session = Session(served, "over")
    await session.send(*opening("over"))
    await session.opened()
    await session.send(Request(chunk=chunk_to_proto(codes_chunk("over", 3, [1]))))
    assert (await session.error()).code == ErrorCode.ERROR_CODE_DATA_LOSS
    async with linked(served) as link:
        await link.write(batch(codes_chunk("over", 0, [1])))
        response = await link.read()
        assert isinstance(response, stage_pb2.LinkResponse)
        assert response.refusal.session_id == "over"
        assert response.refusal.error.code == ErrorCode.ERROR_CODE_CANCELLED


async def test_poisoned_segment_fails_and_others_go_on(served: RunningStage) -> None:
    good, bad = Session(served, "good"), Session(served, "bad")
    for session in (good, bad):
        await session.send(*opening(session.id))
        await session.opened()
    await bad.send(Request(chunk=chunk_to_proto(codes_chunk("bad", 0, [POISON]))))
    error = await bad.error()
    assert (error.code, error.stage) == (ErrorCode.ERROR_CODE_INTERNAL, "code2wav")
    await good.send(Request(chunk=chunk_to_proto(codes_chunk("good", 0, [1], end=True))))
    assert (await good.audio()).segment_finished


async def test_engine_fault_fails_every_session_and_the_stage_goes_on(
    served: RunningStage, engine: FakeEngine
) -> None:
    sessions = [Session(served, name) for name in ("one", "two")]
    for session in sessions:
        await session.send(*opening(session.id))
        await session.opened()
    await sessions[0].send(Request(chunk=chunk_to_proto(codes_chunk("one", 0, [EXPLOSION]))))
    for session in sessions:
        error = await session.error()
        assert error.code == ErrorCode.ERROR_CODE_INTERNAL
        assert "exploded" in error.message
    assert not engine.segments
    again = Session(served, "again")
    await again.send(*opening("again"))
    await again.opened()
    await again.send(Request(chunk=chunk_to_proto(codes_chunk("again", 0, [1], end=True))))
    assert (await again.audio()).segment_finished


async def test_malformed_payload_fails_its_session_and_the_link_goes_on(
    served: RunningStage,
) -> None:
    bad, good = Session(served, "malformed"), Session(served, "fine")
    for session in (bad, good):
        await session.send(*opening(session.id))
        await session.opened()
    broken = chunk_pb2.Chunk(
        session_id="malformed",
        edge="codes",
        payload=chunk_pb2.Payload(size_bytes=4, inline=b"junk"),
    )
    async with linked(served) as link:
        await link.write(stage_pb2.LinkRequest(batch=stage_pb2.ChunkBatch(chunks=[broken])))
        await link.write(batch(codes_chunk("fine", 0, [1], end=True)))
        assert (await bad.error()).code == ErrorCode.ERROR_CODE_DATA_LOSS
        assert (await good.audio()).segment_finished


async def test_lost_link_fails_the_sessions_that_need_it(served: RunningStage) -> None:
    session = Session(served, "cut")
    await session.send(*opening("cut"))
    await session.opened()
    async with linked(served) as link:
        await link.write(batch(codes_chunk("cut", 0, [1])))
        await session.audio()
    error = await session.error()
    assert error.code == ErrorCode.ERROR_CODE_UNAVAILABLE
    assert error.edge == "codes"
    assert error.stage == "talker"


async def test_stalled_session_gets_an_error_that_names_the_edge(engine: FakeEngine) -> None:
    limits = StageLimits(slots=4, stall_timeout_s=0.05, hold_timeout_s=10, hold_bytes=1000)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", limits=limits) as running:
        session = Session(running, "stalled")
        await session.send(*opening("stalled"))
        await session.opened()
        error = await session.error()
        assert error.code == ErrorCode.ERROR_CODE_DEADLINE_EXCEEDED
        assert error.edge == "codes"


async def test_session_ends_when_its_reader_falls_too_far_behind(engine: FakeEngine) -> None:
    loaded = LoadedStage(engine, FACTS)
    async with running_stage(loaded, "code2wav", outbox_bytes=100) as running:
        routes = {"audio": (Destination(),)}
        unread = running.stage.open(SessionRequest("unread", routes))
        turn = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
        running.stage.handle(SegmentRequested("unread", turn))
        for sequence in range(2):
            running.stage.handle(ChunkArrived(codes_chunk("unread", sequence, [1] * 3), ""))
            await asyncio.to_thread(engine.stepped.get, timeout=GENEROUS_S)
        assert await asyncio.to_thread(engine.released.get, timeout=GENEROUS_S) == ("unread", 0)
        replies = [reply async for reply in unread]
        assert isinstance(replies[-1], End)
        assert isinstance(replies[-1].error, ResourceExhausted)


async def test_segments_start_afresh_on_one_session(served: RunningStage) -> None:
    session = Session(served, "turns")
    await session.send(*opening("turns"))
    await session.opened()
    sequence = 0
    for number in range(3):
        if number:
            turn = session_pb2.SegmentOpen(segment=number, outputs=["audio"])
            await session.send(Request(segment_open=turn))
            assert (await session.read("segment_opened")).segment_opened.segment == number
        for values, end in (([number + 1], False), ([number + 1], True)):
            piece = codes_chunk("turns", sequence, values, end=end, segment=number)
            await session.send(Request(chunk=chunk_to_proto(piece)))
            sequence += 1
        total = 0
        while True:
            audio = await session.audio()
            assert audio.segment == number
            assert audio.position == total
            total += len(audio.tensors["samples"]) if audio.tensors else 0
            if audio.segment_finished:
                break
        assert total == 8
        assert (await session.read("report")).report.segment == number


@pytest.mark.parametrize(
    ("requests", "code", "field"),
    [
        (
            opening("x", checkpoint_fingerprint="other")[:1],
            ErrorCode.ERROR_CODE_FAILED_PRECONDITION,
            "open.checkpoint_fingerprint",
        ),
        (
            opening("x", pipeline="other")[:1],
            ErrorCode.ERROR_CODE_FAILED_PRECONDITION,
            "open.pipeline",
        ),
        (opening("")[:1], ErrorCode.ERROR_CODE_INVALID_ARGUMENT, "open.session_id"),
        (opening("x")[1:], ErrorCode.ERROR_CODE_INVALID_ARGUMENT, "open"),
    ],
)
async def test_session_is_refused_at_its_opening(
    served: RunningStage, requests: list[Request], code: int, field: str
) -> None:
    session = Session(served, "x")
    await session.send(*requests)
    error = await session.error()
    assert (error.code, error.field, error.stage) == (code, field, "code2wav")


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (
            Request(segment_open=segment_with(ids=bytes(4))),
            ErrorCode.ERROR_CODE_INVALID_ARGUMENT,
            "history.ids",
        ),
        (
            Request(segment_open=segment_with(frames=bytes(3), code_groups=1)),
            ErrorCode.ERROR_CODE_INVALID_ARGUMENT,
            "history.frames",
        ),
        (
            Request(segment_open=segment_with(latents=bytes(8), latent_width=2)),
            ErrorCode.ERROR_CODE_INVALID_ARGUMENT,
            "history.latents",
        ),
        (opening("x")[0], ErrorCode.ERROR_CODE_FAILED_PRECONDITION, "open"),
        (
            Request(
                segment_open=session_pb2.SegmentOpen(
                    sampling={"code2wav": session_pb2.Sampling(top_p=2.0)}
                )
            ),
            ErrorCode.ERROR_CODE_INVALID_ARGUMENT,
            "sampling.code2wav.top_p",
        ),
        (
            Request(
                segment_open=session_pb2.SegmentOpen(chunk_policy=session_pb2.ChunkPolicy(first=0))
            ),
            ErrorCode.ERROR_CODE_INVALID_ARGUMENT,
            "chunk_policy",
        ),
        (
            Request(chunk=chunk_pb2.Chunk(session_id="another", edge="codes")),
            ErrorCode.ERROR_CODE_INVALID_ARGUMENT,
            "chunk.session_id",
        ),
        (Request(), ErrorCode.ERROR_CODE_INVALID_ARGUMENT, ""),
    ],
)
async def test_session_fails_when_a_request_is_wrong(
    served: RunningStage, request_: Request, code: int, field: str
) -> None:
    session = Session(served, "x")
    await session.send(opening("x")[0])
    await session.read("opened")
    await session.send(request_)
    error = await session.error()
    assert (error.code, error.field) == (code, field)


async def test_second_session_of_the_same_id_is_refused(served: RunningStage) -> None:
    first, second = Session(served, "same"), Session(served, "same")
    await first.send(*opening("same"))
    await first.opened()
    await second.send(*opening("same"))
    assert (await second.error()).code == ErrorCode.ERROR_CODE_FAILED_PRECONDITION


async def test_describe_tells_the_graph_and_the_facts(served: RunningStage) -> None:
    told = await stage_stub(served.channel).Describe(stage_pb2.DescribeRequest())
    assert (told.role, told.pipeline, told.model) == ("code2wav", "qwen3_omni", "fake")
    assert [edge.name for edge in told.inputs] == ["codes"]
    assert [edge.name for edge in told.outputs] == ["audio"]
    assert ("text", "thinker", "") in {
        (edge.name, edge.producer, edge.consumer) for edge in told.pipeline_edges
    }
    assert told.slots == LIMITS.slots
    assert told.boot_id


async def test_draining_stage_refuses_new_sessions_and_keeps_running_ones(
    served: RunningStage,
) -> None:
    running = Session(served, "running")
    await running.send(*opening("running"))
    await running.opened()
    drain = asyncio.create_task(served.stage.drain(GENEROUS_S))
    await asyncio.sleep(0)
    refused = Session(served, "refused")
    await refused.send(*opening("refused"))
    assert (await refused.error()).code == ErrorCode.ERROR_CODE_UNAVAILABLE
    await running.send(Request(chunk=chunk_to_proto(codes_chunk("running", 0, [1], end=True))))
    assert (await running.audio()).segment_finished
    await running.read("report")
    await running.call.done_writing()
    assert await drain
