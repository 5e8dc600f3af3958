"""Suspended streams of a stage, without gRPC: how many of them it keeps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.errors import NotFound
from antiphon.runtime.server import line_streams
from antiphon.runtime.server.line_streams import LineStreams
from antiphon.runtime.server.served_lines import ServedLines
from antiphon.v1 import session_pb2, stage_pb2

REFUSED = stage_pb2.LineRequest(line=1, request=session_pb2.SessionRequest())
"""Opens a line without a session: the stage refuses it, and keeps the refusal."""
GOODBYE = stage_pb2.LineRequest(goodbye=stage_pb2.LineGoodbye())


def serve_nothing(*_: Any) -> Any:
    raise AssertionError("no session is opened")


class Streams:
    """The streams of a stage that never closes. A call breaks when it has sent its requests."""

    def __init__(self, max_sessions: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._streams = LineStreams(
            lambda: ServedLines(serve_nothing, "talker", patience_s=600.0),
            patience_s=600.0,
            resume_window_s=600.0,
            closed=asyncio.Event(),
            outcomes=self.outcomes,
            max_sessions=max_sessions,
        )

    async def suspend(self, name: str, *requests: stage_pb2.LineRequest) -> int:
        """A new stream whose call breaks when the stage has answered as many requests. Returns how
        many bytes the stage keeps of it.
        """
        written = await self._call(name, requests, resume=False)
        for each in written:
            each.received = 0
        return sum(each.ByteSize() for each in written if each.messages)

    async def suspend_again(self, name: str) -> None:
        await self._call(name, (), resume=True)

    async def resume(self, *names: str) -> list[bool]:
        """Whether the stage continues each of these streams, which then end."""
        return [await self._resume(name) for name in names]

    async def _resume(self, name: str) -> bool:
        try:
            written = await self._call(name, (GOODBYE,), resume=True)
        except NotFound:
            return False
        assert written[1].resumed
        return True

    async def _call(
        self, name: str, requests: tuple[stage_pb2.LineRequest, ...], *, resume: bool
    ) -> list[stage_pb2.LineResponse]:
        written: list[stage_pb2.LineResponse] = []
        answered = asyncio.Event()

        async def write(response: stage_pb2.LineResponse) -> None:
            written.append(response)
            if response.resumed or response.messages:
                answered.set()

        async def sent() -> AsyncIterator[stage_pb2.LineRequest]:
            hello = stage_pb2.LineHello(stream_id=name, resume=resume)
            yield stage_pb2.LineRequest(hello=hello)
            if resume:
                await answered.wait()
            for each in requests:
                answered.clear()
                yield each
                await answered.wait()

        await self._streams.serve(sent(), write)
        return written


async def test_as_many_streams_are_suspended_as_sessions_may_be_open() -> None:
    streams = Streams(max_sessions=200)
    names = [str(number) for number in range(200)]
    for name in names:
        await streams.suspend(name, REFUSED)
    assert not streams.outcomes
    assert all(await streams.resume(*names))
    assert streams.outcomes == {"resumed": 200}


async def test_oldest_stream_ends_when_too_many_are_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_streams, "MAX_ENDED_SESSIONS", 1)
    streams = Streams(max_sessions=1)
    for name in "abc":
        await streams.suspend(name)
    assert streams.outcomes == {"ended": 1}
    assert await streams.resume(*"abc") == [False, True, True]


async def test_oldest_stream_ends_when_too_many_bytes_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams(max_sessions=200)
    size_bytes = await streams.suspend("a", REFUSED)
    assert size_bytes > 0
    monkeypatch.setattr(line_streams, "MAX_SUSPENDED_BYTES", 3 * size_bytes - 1)
    await streams.suspend("b", REFUSED)
    await streams.suspend("empty")
    assert not streams.outcomes
    await streams.suspend("c", REFUSED)
    assert streams.outcomes == {"ended": 1}
    # What is resumed counts no more, and counts again when it is suspended again.
    await streams.suspend_again("b")
    assert streams.outcomes == {"ended": 1, "resumed": 1}
    await streams.suspend("d", REFUSED)
    assert await streams.resume("a", "empty", "c", "b", "d") == [False, False, False, True, True]
