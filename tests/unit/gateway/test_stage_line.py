"""What a session's stream to a stage sends, and when it holds the replica's slot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.errors import ResourceExhausted
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon_gateway.sessions.line_requests import MAX_WAITING_BYTES
from antiphon_gateway.sessions.stage_stream import StageStream


class Replica:
    """A stage that sends `responses`, and counts the slots that are taken."""

    def __init__(self, *responses: session_pb2.SessionResponse) -> None:
        self.role, self.address = "talker", "nowhere"
        self.outputs = self.slots = 0
        self.stub = SimpleNamespace(RunSession=self._run_session)
        self.requests: AsyncIterator[session_pb2.SessionRequest]
        self._responses = responses

    def _run_session(
        self, requests: AsyncIterator[session_pb2.SessionRequest]
    ) -> AsyncIterator[session_pb2.SessionResponse]:
        self.requests = requests
        return self._respond()

    async def _respond(self) -> AsyncIterator[session_pb2.SessionResponse]:
        for each in self._responses:
            yield each

    def segment_began(self) -> None:
        self.slots += 1

    def segment_ended(self) -> None:
        self.slots -= 1

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def line(self) -> StageStream:
        return StageStream(self, session_pb2.SessionOpen())  # type: ignore[arg-type]

    async def sent(self, line: StageStream) -> list[session_pb2.SessionRequest]:
        """What waits to be sent, without the opening."""
        assert (await anext(self.requests)).HasField("open")
        line.half_close()
        return [each async for each in self.requests]


def credit(edge: str, positions: int) -> session_pb2.SessionRequest:
    given = session_pb2.OutputCredit(edge=edge, segment=0, positions=positions)
    return session_pb2.SessionRequest(credit=given)


def progress(segment: int) -> session_pb2.SessionRequest:
    return session_pb2.SessionRequest(progress=session_pb2.Progress(segment=segment))


def chunk(size_bytes: int) -> session_pb2.SessionRequest:
    payload = chunk_pb2.Payload(size_bytes=size_bytes)
    return session_pb2.SessionRequest(chunk=chunk_pb2.Chunk(payload=payload))


async def test_the_latest_credit_of_each_edge_and_the_latest_progress_are_sent() -> None:
    replica = Replica()
    line = replica.line()
    for request in (
        credit("audio", 1),
        progress(0),
        credit("text", 5),
        credit("audio", 2),
        progress(1),
    ):
        line.send(request)
    sent = await replica.sent(line)
    credits = {each.credit.edge: each.credit.positions for each in sent[:2]}
    assert credits == {"audio": 2, "text": 5}
    assert sent[2:] == [progress(1)]


async def test_chunks_beyond_the_bound_are_refused_until_some_are_sent() -> None:
    replica = Replica()
    line = replica.line()
    line.send(chunk(MAX_WAITING_BYTES))
    with pytest.raises(ResourceExhausted, match="talker doesn't read the audio"):
        line.send(chunk(1))
    await anext(replica.requests)
    await anext(replica.requests)
    line.send(chunk(1))


async def test_a_report_gives_the_slot_back() -> None:
    report = session_pb2.SessionResponse(report=session_pb2.SegmentReport())
    replica = Replica(session_pb2.SessionResponse(), report)
    assert [replica.slots async for _ in replica.line().responses()] == [1, 0]


async def test_a_loss_upstream_is_announced_once_before_the_report_and_never_after_it() -> None:
    report = session_pb2.SessionResponse(report=session_pb2.SegmentReport())
    replica = Replica(report)
    line = replica.line()
    gone = session_pb2.SessionRequest(gone=session_pb2.StageGone(role="thinker"))
    line.send(gone)
    async for _ in line.responses():
        line.send(gone)
    assert await replica.sent(line) == [gone]


async def test_a_refusal_gives_the_slot_back_and_the_next_segment_takes_it() -> None:
    refused = session_pb2.SessionResponse(segment_refused=session_pb2.SegmentRefused())
    replica = Replica(refused)
    line = replica.line()
    async for _ in line.responses():
        pass
    assert replica.slots == 0
    line.open_segment(session_pb2.SegmentOpen(), ())
    assert replica.slots == 1
