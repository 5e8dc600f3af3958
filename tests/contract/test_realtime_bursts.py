"""Bursts of appended audio: what an event costs, and whom a flooding client delays."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.values.live_conversation import AppendAudio, ClearAudio, Command
from antiphon_gateway.conversations.conversation import LiveConversation
from antiphon_gateway.endpoints.realtime.call import BURST_EVENTS
from tests.contract.served_gateway import MODEL, ServedGateway
from tests.unit.benchmarks.test_opening_counts import OwnCalls

pytestmark = pytest.mark.asyncio(loop_scope="session")

HEAD = (
    f"GET /v1/realtime?model={MODEL} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
MANUAL = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
APPENDS = 400
MOST_CALLS_PER_APPEND = 42
"""Of functions of antiphon, each entry of a coroutine included. An append takes 39.9."""


def frame(kind: str, **fields: object) -> bytes:
    """One event as a masked frame, whose mask is all zeros."""
    text = json.dumps({"type": kind, **fields}).encode()
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text


APPEND = frame("input_audio_buffer.append", audio=base64.b64encode(bytes(16)).decode())
CLEAR = frame("input_audio_buffer.clear")


class Client:
    """A client that writes frames as they are: any number of them leave in one piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, frames: bytes) -> None:
        self._writer.write(frames)

    async def until(self, kind: str) -> None:
        async with asyncio.timeout(120):
            await self._reader.readuntil(f'"{kind}"'.encode())


@asynccontextmanager
async def connected(served: ServedGateway) -> AsyncIterator[Client]:
    """A connection whose turns the client ends."""
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    try:
        client = Client(reader, writer)
        client.write(HEAD.encode())
        await client.until("session.created")
        client.write(frame("session.update", session=MANUAL))
        await client.until("session.updated")
        yield client
    finally:
        writer.close()


async def test_an_append_calls_few_functions(served: ServedGateway) -> None:
    async with connected(served) as client:
        spent = []
        for appends in (0, APPENDS, APPENDS, APPENDS):
            with OwnCalls() as own:
                client.write(APPEND * appends + CLEAR)
                await client.until("input_audio_buffer.cleared")
            spent.append(own.count)
    # The first round states what the command costs whose event is waited for.
    assert min(spent[1:]) - spent[0] <= APPENDS * MOST_CALLS_PER_APPEND


async def test_an_event_is_served_between_two_batches_of_a_client_that_floods(
    served: ServedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[type[Command]] = []
    do = LiveConversation.do

    async with connected(served) as flooding, connected(served) as other:

        async def noted(self: LiveConversation, command: Command) -> None:
            if not order:
                # The flood is in the gateway, and the other's event reaches its socket now.
                other.write(CLEAR)
            order.append(type(command))
            await do(self, command)

        monkeypatch.setattr(LiveConversation, "do", noted)
        flooding.write(APPEND * 32 * BURST_EVENTS)
        await other.until("input_audio_buffer.cleared")
        flooding.write(CLEAR)
        await flooding.until("input_audio_buffer.cleared")
    assert order.count(AppendAudio) == 32 * BURST_EVENTS
    # One pass of the event loop reads the event, and another serves it.
    assert order.index(ClearAudio) <= 4 * BURST_EVENTS
