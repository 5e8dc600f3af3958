"""The writer of a stream of lines, without gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.errors import Unavailable
from antiphon.runtime.server.served_lines import LineCall, ServedLines
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
        raise Unavailable("a message came damaged")
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
    with pytest.raises(Unavailable, match="damaged"):
        await running
