"""Reports of steps that come faster than a client reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import numpy as np

from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.wire.chunks import put_chunk
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.lineup import Lineup, Member
from antiphon_gateway.sessions.session_lines import (
    MAILBOX_MESSAGES,
    OpenSegment,
    SessionLines,
)
from antiphon_gateway.sessions.stage_stream import StageStream

EDGES = (
    stage_pb2.PipelineEdge(name="input", consumer="think"),
    stage_pb2.PipelineEdge(name="text", producer="think"),
    stage_pb2.PipelineEdge(name="plan", producer="think", consumer="draw"),
    stage_pb2.PipelineEdge(name="image", producer="draw"),
)
OPENED = session_pb2.SessionResponse(opened=session_pb2.SessionOpened())


def steps(done: int) -> session_pb2.SessionResponse:
    progress = session_pb2.Progress(steps_done=done, steps_due=9)
    return session_pb2.SessionResponse(progress=progress)


def text() -> session_pb2.SessionResponse:
    response = session_pb2.SessionResponse()
    put_chunk(Chunk("s", "text", tensors={"ids": np.zeros(1, np.int32)}), response.chunk)
    return response


class Scripted:
    """A line on which everything has come already."""

    gone = False

    def __init__(self, role: str, *responses: session_pb2.SessionResponse) -> None:
        self.role = role
        self._responses = (OPENED, *responses)
        self.read = asyncio.Event()

    async def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        for each in self._responses:
            yield each
        self.read.set()

    def send(self, request: session_pb2.SessionRequest) -> None:
        """Others' progress."""

    def cancel(self) -> None:
        """Nothing is open."""

    def half_close(self) -> None:
        """Nothing is open."""


async def read(*lines: Scripted) -> list[tuple[str, str]]:
    """What a client gets that begins to read when all has come of the first line."""
    roles = [each.role for each in lines]
    members = tuple(Member(role, "a:1", stage_pb2.DescribeResponse()) for role in roles)
    outputs = frozenset({"text", "image"} if len(lines) > 1 else {"text"})
    assignment = cast(Assignment, dict.fromkeys(roles))
    waiting = iter(lines)
    session = SessionLines(
        "s",
        Lineup(members, EDGES, outputs),
        assignment,
        {},
        lambda *_: cast(StageStream, next(waiting)),
    )
    openings = {role: session_pb2.SegmentOpen() for role in roles}
    session.open_segment(OpenSegment(0), openings, chunk_pb2.Chunk())
    await lines[0].read.wait()
    got: list[tuple[str, str]] = []
    left = len(lines)
    while left:
        role, response = await session.next_message()
        if response is None:
            left -= 1
        elif response.HasField("progress"):
            got.append((role, str(response.progress.steps_done)))
        else:
            got.append((role, "chunk"))
    await session.close()
    return got


async def test_only_the_newest_of_waiting_reports_is_told() -> None:
    plain = session_pb2.SessionResponse(progress=session_pb2.Progress())
    assert await read(Scripted("think", steps(1), plain, steps(2), steps(5))) == [("think", "5")]
    line = Scripted("think", steps(1), text(), steps(7))
    told = await read(line)
    assert told == [("think", "7"), ("think", "chunk")], "a report does not queue twice"


async def test_reports_do_not_wait_for_a_client_that_reads_nothing() -> None:
    full = [text() for _ in range(MAILBOX_MESSAGES + 4)]
    thinker, painter = Scripted("think", *map(steps, range(1, 9))), Scripted("draw", *full)
    told = await read(thinker, painter)
    assert told.count(("think", "8")) == 1
    assert told.count(("draw", "chunk")) == len(full)
    assert len(told) == len(full) + 1
    # The mailbox was full when the first report came.
    late = Scripted("think", *[text()] * MAILBOX_MESSAGES, steps(1), steps(2))
    told = await read(late)
    assert told == [("think", "chunk")] * MAILBOX_MESSAGES + [("think", "2")]
