"""A client ends one segment of a session and opens the next, on a served stage."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.values.segment import SegmentKey
from antiphon.wire.chunks import chunk_to_proto
from antiphon_testkit.qwen3_omni.fake_engine import FakeEngine
from antiphon_testkit.stage_harness import RunningStage
from tests.integration.stage_session import Request, Session, codes_chunk, opening

pytestmark = pytest.mark.usefixtures("each_carrier")


async def test_cancelled_segment_is_reported_when_the_engine_holds_nothing_of_it(
    served: RunningStage, engine: FakeEngine
) -> None:
    session = Session(served, "barge")
    await session.send(*opening("barge"))
    await session.opened()
    await session.send(Request(chunk=chunk_to_proto(codes_chunk("barge", 0, [1, 2]))))
    await session.audio()
    engine.gate.clear()
    await session.send(Request(chunk=chunk_to_proto(codes_chunk("barge", 1, [3]))))
    assert await asyncio.to_thread(engine.in_step.wait, 10)
    cancel = session_pb2.CancelSegment(segment=0)
    again = session_pb2.SegmentOpen(segment=1, outputs=["audio"])
    await session.send(Request(cancel_segment=cancel), Request(segment_open=again))
    # The next is open at once; the report waits for the engine, which is in a step.
    assert (await session.read("segment_opened")).segment_opened.segment == 1
    assert SegmentKey("barge", 0) in engine.segments
    engine.gate.set()
    report = (await session.read("report")).report
    assert (report.segment, report.finish_reason) == (0, chunk_pb2.FINISH_REASON_CANCELLED)
    assert SegmentKey("barge", 0) not in engine.segments
    # The step that was under way decoded the third frame; nobody gets it.
    assert (report.input_positions, report.output_positions) == (3, 12)
    piece = codes_chunk("barge", 2, [7], end=True, segment=1)
    await session.send(Request(chunk=chunk_to_proto(piece)))
    audio = await session.audio()
    assert (audio.segment, audio.position, audio.sequence) == (1, 0, 1)
    assert audio.tensors["samples"].tolist() == [7.0] * 4


async def test_live_segment_holds_no_slot_before_its_first_chunk(served: RunningStage) -> None:
    session = Session(served, "spoken")
    opens, segment = opening("spoken")
    segment.segment_open.live = True
    await session.send(opens, segment)
    await session.opened()
    assert served.stage.table.open_segments == 0
    finish = session_pb2.InputFinished(segment=0)
    piece = codes_chunk("spoken", 0, [5], end=True)
    await session.send(Request(input_finished=finish), Request(chunk=chunk_to_proto(piece)))
    assert (await session.audio()).tensors["samples"].tolist() == [5.0] * 4
