"""The messages of a WebSocket client, and whether one has arrived."""

from __future__ import annotations

import asyncio
from typing import Any

from antiphon_gateway.endpoints.realtime.incoming import IncomingMessages


def messages_of(*messages: dict[str, Any]) -> IncomingMessages:
    queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    for each in messages:
        queue.put_nowait(each)
    return IncomingMessages(queue.get, lambda: not queue.empty())


def text(data: str) -> dict[str, Any]:
    return {"type": "websocket.receive", "text": data}


async def test_messages_are_text_until_the_client_leaves() -> None:
    incoming = messages_of(
        text("1"),
        {"type": "websocket.receive", "bytes": b"2\xff"},
        {"type": "websocket.disconnect", "code": 1000},
    )
    assert incoming.arrived()
    assert [await incoming.read() for _ in range(2)] == ["1", "2\ufffd"]
    assert not incoming.left
    # Once it is known that the client has left, nothing is waited for.
    assert [await incoming.read() for _ in range(2)] == [None, None]
    assert incoming.left
    assert not incoming.arrived()


async def test_a_message_that_is_put_back_is_the_next_one() -> None:
    incoming = messages_of(text("1"), text("2"))
    first = await incoming.read()
    assert first == "1"
    incoming.put_back(first)
    assert [await incoming.read() for _ in range(2)] == ["1", "2"]
