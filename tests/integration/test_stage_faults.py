"""One session's fault on a served stage: it has its error, and the others notice nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from antiphon.errors import DeadlineExceeded, Internal, ResourceExhausted
from antiphon.runtime.engine import Emitted, EngineEvent, LoadedStage
from antiphon.runtime.server.outbox import Outbox
from antiphon.runtime.server.stage import Reply
from antiphon.runtime.session.facts import (
    ChunkArrived,
    ClientDone,
    SegmentCancelled,
    SegmentRequested,
)
from antiphon.runtime.session.instructions import Destination, End
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest
from antiphon.runtime.stepping.thread import RESULT_PERMITS
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import SegmentKey
from antiphon.wire import blob
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.status import error_from_rpc
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import LIMITS, RunningStage
from tests.integration.stage_session import (
    Request,
    Session,
    batch,
    codes_chunk,
    linked,
    opening,
    own_stream,
)

pytestmark = pytest.mark.usefixtures("each_carrier")

ErrorCode = session_pb2.ErrorCode
UNSENDABLE = 77
GENEROUS_S = 120.0
"""A code whose samples have a dtype that no wire carries."""


class OddEngine(FakeEngine):
    """Emits what cannot be sent, for sessions that ask for it by a code."""

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        return [_odd(event) for event in super().step(held)]


def _odd(event: EngineEvent) -> EngineEvent:
    if not (isinstance(event, Emitted) and UNSENDABLE in event.tensors.get("codes", ())):
        return event
    tensors = {**event.tensors, "samples": event.tensors["samples"].astype(np.complex64)}
    return Emitted(event.key, event.edge, event.position, tensors, event.finish_reason)


@pytest.fixture
async def odd() -> AsyncIterator[tuple[RunningStage, OddEngine]]:
    engine = OddEngine()
    async with running_stage(LoadedStage(engine, FACTS), "code2wav") as running:
        yield running, engine
        engine.gate.set()


async def opened(running: RunningStage, name: str) -> Session:
    session = Session(running, name)
    await session.send(*opening(name))
    await session.opened()
    return session


async def speaks(session: Session, sequence: int = 0) -> None:
    """The session's whole answer comes."""
    ending = codes_chunk(session.id, sequence, [1], end=True)
    await session.send(Request(chunk=chunk_to_proto(ending)))
    assert (await session.audio()).segment_finished
    await session.read("report")
    await session.call.done_writing()
    assert await session.call.read() is grpc.aio.EOF


async def test_deadline_ends_a_segment_that_has_input_and_frees_its_slot(
    engine: FakeEngine,
) -> None:
    """The stage alone does, whoever is gone."""
    one_slot = replace(LIMITS, slots=1)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", limits=one_slot) as running:
        late = Session(running, "late")
        session, turn = opening("late")
        turn.segment_open.deadline_s = 2.0
        await late.send(session, turn, Request(chunk=chunk_to_proto(codes_chunk("late", 0, [1]))))
        await late.opened()
        await late.audio()
        refused = Session(running, "refused")
        await refused.send(*opening("refused"))
        await refused.read("opened")
        assert (await refused.error()).code == ErrorCode.ERROR_CODE_RESOURCE_EXHAUSTED
        error = await late.error()
        assert (error.code, error.stage) == (ErrorCode.ERROR_CODE_DEADLINE_EXCEEDED, "code2wav")
        await speaks(await opened(running, "next"))


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 1e12])
@pytest.mark.parametrize("field", ["deadline_s", "open.limits.stall_timeout_s"])
async def test_clock_without_sense_fails_its_session_and_no_other(
    served: RunningStage, seconds: float, field: str
) -> None:
    deadline = seconds if field == "deadline_s" else 0.0
    limits = session_pb2.SessionLimits(stall_timeout_s=0.0 if deadline else seconds)
    if field == "deadline_s":
        limits = session_pb2.SessionLimits()
    turn = session_pb2.SegmentOpen(outputs=["audio"], deadline_s=deadline)
    bad = Session(served, "bad")
    await bad.send(
        Request(open=session_pb2.SessionOpen(session_id="bad", limits=limits, first_segment=turn))
    )
    error = await bad.error()
    assert (error.code, error.field) == (ErrorCode.ERROR_CODE_INVALID_ARGUMENT, field)
    await speaks(await opened(served, "good"))
    assert served.stage.table.session_count == 0


async def test_output_that_cannot_be_sent_fails_its_session_on_the_stream(
    odd: tuple[RunningStage, OddEngine],
) -> None:
    running, _ = odd
    bad, good = await opened(running, "bad"), await opened(running, "good")
    await bad.send(Request(chunk=chunk_to_proto(codes_chunk("bad", 0, [UNSENDABLE]))))
    error = await bad.error()
    assert (error.code, error.stage) == (ErrorCode.ERROR_CODE_INTERNAL, "code2wav")
    await speaks(good)


async def test_output_that_cannot_be_sent_to_a_stage_fails_its_session_and_frees_all(
    odd: tuple[RunningStage, OddEngine],
) -> None:
    running, engine = odd
    stage = running.stage
    good = await opened(running, "good")
    turn = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
    for number in range(RESULT_PERMITS + 10):
        name = f"bad-{number}"
        outbox = stage.open(
            SessionRequest(name, {"audio": (Destination(running.address), Destination())})
        )
        stage.handle(SegmentRequested(name, turn))
        stage.handle(ChunkArrived(codes_chunk(name, 0, [UNSENDABLE]), ""))
        ends = [reply async for reply in outbox if isinstance(reply, End)]
        assert [type(end.error) for end in ends] == [Internal]
        assert await asyncio.to_thread(engine.released.get, timeout=GENEROUS_S) == (name, 0)
    assert stage.table.session_count == stage.table.open_segments == 1
    await speaks(good)


async def test_other_sessions_of_a_batch_get_their_output_when_one_cannot(
    odd: tuple[RunningStage, OddEngine],
) -> None:
    running, engine = odd
    stage = running.stage
    good = await opened(running, "good")
    outbox = stage.open(SessionRequest("bad", {"audio": (Destination(running.address),)}))
    turn = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
    stage.handle(SegmentRequested("bad", turn))
    engine.gate.clear()
    # The first two share a step, whatever else the engine is at.
    stage.handle(ChunkArrived(codes_chunk("bad", 0, [UNSENDABLE]), ""))
    stage.handle(ChunkArrived(codes_chunk("good", 0, [5]), ""))
    engine.gate.set()
    ends = [reply async for reply in outbox if isinstance(reply, End)]
    assert isinstance(ends[0].error, Internal)
    assert (await good.audio()).tensors["samples"][0] == 5
    await speaks(good, sequence=1)


SCALAR = chunk_pb2.Payload(inline=blob.encode({"codes": np.array(3, np.uint16)}))
SCALAR.size_bytes = len(SCALAR.inline)


def _huge() -> chunk_pb2.Payload:
    """An empty tensor of (0, 2**40, 2**40)."""
    shape = b"\x93" + b"\x00" + 2 * (b"\xcf" + (1 << 40).to_bytes(8, "big"))
    entry = b"\x94" + b"\xa5codes" + b"\xa6uint16" + shape + b"\x30"
    header = b"\x92" + b"\x91" + entry + b"\x80"
    data = b"ATB1" + len(header).to_bytes(4, "little") + header
    data += bytes(-len(data) % 64)
    return chunk_pb2.Payload(inline=data, size_bytes=len(data))


@pytest.mark.parametrize("payload", [SCALAR, _huge()], ids=["scalar", "huge"])
@pytest.mark.parametrize("way", ["link", "stream"])
async def test_malformed_tensor_fails_its_session_and_no_other(
    served: RunningStage, payload: chunk_pb2.Payload, way: str
) -> None:
    bad = Session(served, "bad")
    await bad.send(*opening("bad", windows={"codes": 100}))
    await bad.opened()
    good = await opened(served, "good")
    broken = chunk_pb2.Chunk(session_id="bad", edge="codes", payload=payload)
    async with linked(served) as link:
        if way == "link":
            await link.write(stage_pb2.LinkRequest(batch=stage_pb2.ChunkBatch(chunks=[broken])))
        else:
            await bad.send(Request(chunk=broken))
        error = await bad.error()
        assert error.code == ErrorCode.ERROR_CODE_DATA_LOSS
        assert "codes" in error.message
        await link.write(batch(codes_chunk("good", 0, [1], end=True)))
        assert (await good.audio()).segment_finished


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
async def test_bytes_that_are_no_request_fail_the_session(
    served: RunningStage, first: bool
) -> None:
    call = served.channel.stream_stream(
        "/antiphon.v1.StageService/RunSession",
        response_deserializer=session_pb2.SessionResponse.FromString,
    )()
    if not first:
        await call.write(opening("bytes")[0].SerializeToString())
        await call.read()
    await call.write(b"\xff\xff\xff")
    answer = await call.read()
    assert isinstance(answer, session_pb2.SessionResponse)
    assert answer.error.code == ErrorCode.ERROR_CODE_INVALID_ARGUMENT
    assert await call.read() is grpc.aio.EOF
    assert served.stage.table.session_count == 0


async def test_malformed_chunk_that_comes_before_its_session_fails_it_when_it_opens(
    served: RunningStage,
) -> None:
    broken = chunk_pb2.Chunk(
        session_id="soon", edge="codes", payload=chunk_pb2.Payload(size_bytes=4, inline=b"junk")
    )
    async with linked(served) as link:
        await link.write(stage_pb2.LinkRequest(batch=stage_pb2.ChunkBatch(chunks=[broken])))
        await link.write(batch(codes_chunk("soon", 1, [1])))
        refusal = await link.read()
        assert isinstance(refusal, stage_pb2.LinkResponse)
        assert refusal.refusal.session_id == "soon"
        soon = Session(served, "soon")
        await soon.send(opening("soon")[0])
        error = await soon.error()
        assert error.code == ErrorCode.ERROR_CODE_DATA_LOSS
        assert "header" in error.message


async def test_whole_answer_above_the_outbox_is_sent_and_its_stream_ends(
    engine: FakeEngine,
) -> None:
    values = list(range(1, 40))
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", outbox_bytes=64) as running:
        session = Session(running, "whole")
        requests = opening("whole")
        requests[1].segment_open.delivery["audio"] = session_pb2.DELIVERY_WHOLE
        await session.send(*requests)
        await session.opened()
        ending = codes_chunk("whole", 0, values, end=True)
        await session.send(Request(chunk=chunk_to_proto(ending)))
        audio = await session.audio()
        assert len(audio.tensors["samples"]) == 4 * len(values)
        await session.read("report")
        await session.call.done_writing()
        assert await session.call.read() is grpc.aio.EOF


@pytest.mark.parametrize("each_carrier", [own_stream], indirect=True)
async def test_stream_that_says_nothing_is_refused_in_time(engine: FakeEngine) -> None:
    limits = replace(LIMITS, hold_timeout_s=0.05)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", limits=limits) as running:
        error = await Session(running, "silent").error()
        assert (error.code, error.field) == (ErrorCode.ERROR_CODE_DEADLINE_EXCEEDED, "open")


async def test_parked_session_fails_when_no_segment_is_opened(engine: FakeEngine) -> None:
    limits = replace(LIMITS, idle_session_timeout_s=0.05)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", limits=limits) as running:
        session = Session(running, "idle")
        await session.send(opening("idle")[0])
        await session.read("opened")
        error = await session.error()
        assert error.code == ErrorCode.ERROR_CODE_DEADLINE_EXCEEDED
        assert "idle_session_timeout_s" in error.message
        assert running.stage.table.session_count == 0


async def test_sessions_are_bounded_in_number(engine: FakeEngine) -> None:
    limits = replace(LIMITS, max_sessions=2)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", limits=limits) as running:
        sessions = [await opened(running, name) for name in ("a", "b")]
        refused = Session(running, "c")
        await refused.send(opening("c")[0])
        error = await refused.error()
        assert (error.code, error.stage) == (ErrorCode.ERROR_CODE_RESOURCE_EXHAUSTED, "code2wav")
        assert error.retry_after_s > 0
        await speaks(sessions[0])
        await speaks(await opened(running, "d"))


async def read_to_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def send_more_than_is_read(session: Session, engine: FakeEngine) -> None:
    """More than flow control lets go without a reader. The engine answers when all of it has been
    sent, so that the stage has not given the session up before."""
    engine.gate.clear()
    try:
        for sequence in range(4):
            frames = codes_chunk(session.id, sequence, [1] * 60_000)
            await session.send(Request(chunk=chunk_to_proto(frames)))
    finally:
        engine.gate.set()


async def test_session_is_freed_when_its_client_takes_nothing(engine: FakeEngine) -> None:
    limits = replace(LIMITS, idle_session_timeout_s=0.2)
    async with running_stage(
        LoadedStage(engine, FACTS), "code2wav", limits=limits, outbox_bytes=1 << 30
    ) as running:
        session = Session(running, "deaf")
        await session.send(*opening("deaf"))
        await session.opened()
        await send_more_than_is_read(session, engine)
        assert await asyncio.to_thread(engine.released.get, timeout=GENEROUS_S) == ("deaf", 0)
        assert running.stage.table.session_count == 0


@pytest.mark.parametrize("each_carrier", [own_stream], indirect=True)
async def test_call_ends_with_an_error_when_its_client_has_taken_nothing(
    engine: FakeEngine,
) -> None:
    limits = replace(LIMITS, idle_session_timeout_s=0.2)
    async with running_stage(
        LoadedStage(engine, FACTS), "code2wav", limits=limits, outbox_bytes=1 << 30
    ) as running:
        session = Session(running, "deaf")
        await session.send(*opening("deaf"))
        await send_more_than_is_read(session, engine)
        assert await asyncio.to_thread(engine.released.get, timeout=GENEROUS_S) == ("deaf", 0)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await read_to_end(session.call)
    error = error_from_rpc(ended.value)
    assert isinstance(error, DeadlineExceeded)
    assert error.stage == "code2wav"
    assert error.message == "the client has not read anything for 0.2 s"


@pytest.fixture
def few_items(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many messages may wait for a reader, made small."""
    monkeypatch.setattr("antiphon.runtime.server.outbox.MAX_ITEMS", 16)
    return 16


async def busy(running: RunningStage, engine: FakeEngine) -> None:
    """The engine is in a step for another session, until its gate is opened."""
    other = await opened(running, "other")
    engine.gate.clear()
    await other.send(Request(chunk=chunk_to_proto(codes_chunk(other.id, 0, [1], end=True))))
    assert await asyncio.to_thread(engine.in_step.wait, GENEROUS_S)


async def unread_turns(running: RunningStage, count: int) -> Outbox[Reply]:
    """A session with so many turns behind it; each has put a message into its outbox."""
    stage = running.stage
    outbox = stage.open(SessionRequest("unread", {"audio": (Destination(),)}))
    for number in range(count):
        stage.handle(SegmentRequested("unread", audio_turn(number)))
        stage.handle(SegmentCancelled("unread", number))
    return outbox


def audio_turn(number: int) -> SegmentRequest:
    return SegmentRequest(number, SamplingRequest(), "", frozenset({"audio"}), {})


async def test_nothing_is_admitted_after_its_session_failed_in_the_same_batch(
    served: RunningStage, engine: FakeEngine, few_items: int
) -> None:
    unread = await unread_turns(served, few_items - 1)
    served.stage.handle(SegmentRequested("unread", audio_turn(few_items - 1)))
    *_, last = [reply async for reply in unread]
    assert isinstance(last, End)
    assert isinstance(last.error, ResourceExhausted)
    assert served.stage.table.session_count == served.stage.table.open_segments == 0
    # The engine has done all its commands when it has stepped for another session, which it may not
    # have released yet.
    await speaks(await opened(served, "good"))
    assert {key.session_id for key in list(engine.segments)} <= {"good"}


async def test_report_that_cannot_be_sent_leaves_an_error_and_no_segment(
    served: RunningStage, engine: FakeEngine, few_items: int
) -> None:
    # There is room for `segment_opened` and the last chunk, and none for the report.
    turns = few_items - 3
    # The engine hears of all of it at once, so that the last chunk comes before the reports of what
    # was cancelled.
    await busy(served, engine)
    unread = await unread_turns(served, turns)
    served.stage.handle(SegmentRequested("unread", audio_turn(turns)))
    served.stage.handle(ClientDone("unread"))
    served.stage.handle(ChunkArrived(codes_chunk("unread", 0, [1], end=True, segment=turns), ""))
    engine.gate.set()
    while await asyncio.to_thread(engine.released.get, timeout=GENEROUS_S) != ("unread", turns):
        continue
    *_, chunk, last = [reply async for reply in unread]
    assert isinstance(chunk, Chunk)
    assert chunk.segment_finished
    assert isinstance(last, End)
    assert isinstance(last.error, ResourceExhausted)
    assert not engine.segments
    await speaks(await opened(served, "good"))
