"""Reports of steps that come faster than a client reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import numpy as np

from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.wire.chunks import put_chunk
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.lineup import Lineup, Member
from antiphon_gateway.sessions.session_lines import OpenSegment, SessionLines
from antiphon_gateway.sessions.stage_line import StageLine

EDGES = (
    stage_pb2.PipelineEdge(name="input", consumer="think"),
    stage_pb2.PipelineEdge(name="text", producer="think"),
)


def steps(done: int) -> session_pb2.SessionResponse:
    progress = session_pb2.Progress(steps_done=done, steps_due=9)
    return session_pb2.SessionResponse(progress=progress)


def text() -> session_pb2.SessionResponse:
    response = session_pb2.SessionResponse()
    put_chunk(Chunk("s", "text", tensors={"ids": np.zeros(1, np.int32)}), response.chunk)
    return response


class Scripted:
    """A line on which everything has come already."""

    role, gone = "think", False

    def __init__(self, *responses: session_pb2.SessionResponse) -> None:
        self._responses = responses
        self.read = asyncio.Event()

    async def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        for each in self._responses:
            yield each
        self.read.set()

    def cancel(self) -> None:
        """Nothing is open."""

    def half_close(self) -> None:
        """Nothing is open."""


async def read(line: Scripted) -> list[str]:
    """What a client gets that begins to read when all has come."""
    member = Member("think", "a:1", stage_pb2.DescribeResponse())
    lineup = Lineup((member,), EDGES, frozenset({"text"}))
    assignment = cast(Assignment, {"think": cast(Any, None)})
    lines = SessionLines("s", lineup, assignment, {}, lambda *_: cast(StageLine, line))
    openings = {"think": session_pb2.SegmentOpen()}
    lines.open_segment(OpenSegment(0), openings, chunk_pb2.Chunk())
    await line.read.wait()
    got: list[str] = []
    while (response := (await lines.next_message())[1]) is not None:
        steps_told = response.HasField("progress")
        got.append(str(response.progress.steps_done) if steps_told else "chunk")
    await lines.close()
    return got


async def test_only_the_newest_of_waiting_reports_is_told() -> None:
    opened = session_pb2.SessionResponse(opened=session_pb2.SessionOpened())
    plain = session_pb2.SessionResponse(progress=session_pb2.Progress())
    assert await read(Scripted(opened, steps(1), plain, steps(2), steps(5))) == ["5"]
    line = Scripted(opened, steps(1), text(), steps(7))
    assert await read(line) == ["7", "chunk"], "a report does not queue twice"
    many = Scripted(opened, *map(steps, range(1, 9)))
    assert await read(many) == ["8"], "no more of them wait than there are stages"
