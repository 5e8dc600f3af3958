"""The writer of a stream of lines, without gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.errors import Unavailable
from antiphon.runtime.server.served_lines import LineCall, ServedLines
from antiphon.transport import confirmation_clock
from antiphon.v1 import session_pb2, stage_pb2

TURNS = 20
"""Of the event loop: more than a task needs to end that waits for nothing."""


def serve_nothing(*_: Any) -> Any:
    raise AssertionError("no line is opened")


async def test_stream_that_fails_ends_after_the_message_that_is_being_written() -> None:
    """gRPC rejects the status of a call whose message is being written: the call would hang."""
    writing, written = asyncio.Event(), asyncio.Event()

    async def write(_: stage_pb2.LineResponse) -> None:
        writing.set()
        await written.wait()

    async def damaged() -> AsyncIterator[stage_pb2.LineRequest]:
        await writing.wait()
        raise Unavailable("received a corrupt message")
        yield

    lines = ServedLines(serve_nothing, "talker", patience_s=600.0)
    # A line that is not opened is refused, so something is written.
    first = stage_pb2.LineRequest(line=1, request=session_pb2.SessionRequest())
    running = asyncio.create_task(lines.run(LineCall(first, damaged(), write), asyncio.Event()))
    await writing.wait()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert not running.done()
    written.set()
    with pytest.raises(Unavailable, match="corrupt"):
        await running


async def test_call_on_which_nothing_is_confirmed_ends_and_the_stream_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirmation_clock, "TICK_S", 0.0)
    written: list[stage_pb2.LineResponse] = []

    async def write(response: stage_pb2.LineResponse) -> None:
        written.append(response)

    async def refused() -> AsyncIterator[stage_pb2.LineRequest]:
        # A line that is not opened is refused, so something is written.
        yield stage_pb2.LineRequest(line=1, request=session_pb2.SessionRequest())
        await asyncio.Event().wait()

    lines = ServedLines(serve_nothing, "talker", patience_s=600.0)
    hello = stage_pb2.LineRequest(hello=stage_pb2.LineHello(stream_id="gateway"))
    with pytest.raises(Unavailable, match="not confirmed anything"):
        await lines.run(LineCall(hello, refused(), write), asyncio.Event())
    assert lines.may_continue
    (lost,) = (each for each in written if each.messages)
    assert lost.received == 1
    written.clear()
    resumed = asyncio.Event()
    closed = asyncio.Event()

    async def confirmed() -> AsyncIterator[stage_pb2.LineRequest]:
        await resumed.wait()
        yield stage_pb2.LineRequest(goodbye=stage_pb2.LineGoodbye(), received=1)

    async def write_again(response: stage_pb2.LineResponse) -> None:
        written.append(response)
        if response.messages:
            resumed.set()

    hello.hello.resume = True
    await lines.run(LineCall(hello, confirmed(), write_again), closed)
    assert written[0].resumed
    assert [list(each.messages) for each in written if each.messages] == [list(lost.messages)]
