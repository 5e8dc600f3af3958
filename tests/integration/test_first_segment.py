"""A session that opens with its first segment, and with what there is of its input."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from antiphon.runtime.engine import LoadedStage
from antiphon.v1 import session_pb2
from antiphon.wire.chunks import chunk_to_proto
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import LIMITS, RunningStage
from tests.integration.stage_session import Request, Session, codes_chunk, opening

pytestmark = pytest.mark.usefixtures("each_carrier")


async def test_first_segment_and_its_input_come_with_the_session(served: RunningStage) -> None:
    session = Session(served, "at once")
    (opened, turn) = opening("at once")
    opened.open.first_segment.CopyFrom(turn.segment_open)
    pieces = (codes_chunk("at once", 0, [1, 2]), codes_chunk("at once", 1, [3], end=True))
    opened.open.first_input.extend(chunk_to_proto(piece) for piece in pieces)
    await session.send(opened)
    assert (await session.read("opened")).opened.boot_id
    samples: list[float] = []
    while not (audio := await session.audio()).segment_finished:
        samples += audio.tensors["samples"].tolist()
    assert samples + audio.tensors.get("samples", np.zeros(0)).tolist() == [
        value for value in (1, 2, 3) for _ in range(4)
    ]
    assert (await session.read("report")).report.input_positions == 3
    second = session_pb2.SegmentOpen(segment=1, outputs=["audio"])
    await session.send(Request(segment_open=second))
    assert (await session.read("segment_opened")).segment_opened.segment == 1


async def test_last_chunk_of_a_session_says_so_when_its_segment_is_the_last(
    served: RunningStage,
) -> None:
    session = Session(served, "two")
    (opened, turn) = opening("two")
    opened.open.first_segment.CopyFrom(turn.segment_open)
    await session.send(opened)
    await session.read("opened")
    for segment, last in enumerate((False, True)):
        if segment:
            second = session_pb2.SegmentOpen(segment=1, outputs=["audio"], last=True)
            await session.send(Request(segment_open=second))
            await session.read("segment_opened")
        piece = codes_chunk("two", segment, [1], end=True, segment=segment)
        await session.send(Request(chunk=chunk_to_proto(piece)))
        while not (audio := await session.audio()).segment_finished:
            assert not audio.finished
        assert (audio.segment, audio.finished) == (segment, last)
        await session.read("report")
    await session.send(Request(segment_open=session_pb2.SegmentOpen(segment=2)))
    error = await session.error()
    assert error.code == session_pb2.ErrorCode.ERROR_CODE_FAILED_PRECONDITION
    assert "after the last one" in error.message


async def test_session_is_not_opened_when_its_first_segment_has_no_slot(engine: FakeEngine) -> None:
    limits = dataclasses.replace(LIMITS, slots=1)
    async with running_stage(LoadedStage(engine, FACTS), "code2wav", limits=limits) as running:
        holder = Session(running, "holder")
        await holder.send(*opening("holder"))
        await holder.opened()
        late = Session(running, "late")
        (opened, turn) = opening("late")
        opened.open.first_segment.CopyFrom(turn.segment_open)
        await late.send(opened)
        assert (await late.error()).code == session_pb2.ErrorCode.ERROR_CODE_RESOURCE_EXHAUSTED


async def test_first_input_of_another_session_is_refused(served: RunningStage) -> None:
    session = Session(served, "mine")
    (opened, turn) = opening("mine")
    opened.open.first_segment.CopyFrom(turn.segment_open)
    opened.open.first_input.append(chunk_to_proto(codes_chunk("theirs", 0, [1])))
    await session.send(opened)
    await session.read("opened")
    assert (await session.error()).field == "chunk.session_id"
