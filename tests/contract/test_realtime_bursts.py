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
from tests.contract.served_gateway import MODEL, ServedGateway, serve_gateway
from tests.unit.benchmarks.test_opening_counts import OwnCalls

pytestmark = pytest.mark.asyncio(loop_scope="session")

HEAD = (
    f"GET /v1/realtime?model={MODEL} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
APPENDS = 400
MOST_CALLS_PER_APPEND = 20
"""Of functions of antiphon, each entry of a coroutine included. An append takes 17.4, of which an
eighth of the calls of a command is a part."""
SECONDS = 2.0


def frame(kind: str, **fields: object) -> bytes:
    """One event as a masked frame, whose mask is all zeros."""
    text = json.dumps({"type": kind, **fields}).encode()
    size = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2)
    return b"\x81" + size + bytes(4) + text


def appended(pcm16: bytes, **fields: object) -> bytes:
    audio = base64.b64encode(pcm16).decode()
    return frame("input_audio_buffer.append", audio=audio, **fields)


APPEND_BYTES = 16
APPEND = appended(bytes(APPEND_BYTES))
CLEAR = frame("input_audio_buffer.clear")


class Client:
    """A client that writes frames as they are: any number of them leave in one piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, frames: bytes) -> None:
        self._writer.write(frames)

    async def until(self, kind: str) -> bytes:
        async with asyncio.timeout(120):
            return await self._reader.readuntil(f'"{kind}"'.encode())


@asynccontextmanager
async def connected(
    served: ServedGateway, turns: object = None, query: str = ""
) -> AsyncIterator[Client]:
    """A connection whose turns the client ends, unless `turns` has them detected."""
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    try:
        client = Client(reader, writer)
        client.write(HEAD.replace(MODEL, MODEL + query, 1).encode())
        await client.until("session.created")
        session = {"type": "realtime", "audio": {"input": {"turn_detection": turns}}}
        client.write(frame("session.update", session=session))
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
    # Each event counts, whether or not it shares a command with others.
    order: list[type[Command]] = []
    do = LiveConversation.do

    async with connected(served) as flooding, connected(served) as other:

        async def noted(self: LiveConversation, command: Command) -> None:
            if not order:
                # The flood is in the gateway, and the other's event reaches its socket now.
                other.write(CLEAR)
            of_audio = isinstance(command, AppendAudio)
            order.extend([type(command)] * (len(command.pcm16) // APPEND_BYTES if of_audio else 1))
            await do(self, command)

        monkeypatch.setattr(LiveConversation, "do", noted)
        flooding.write(APPEND * 32 * BURST_EVENTS)
        await other.until("input_audio_buffer.cleared")
        flooding.write(CLEAR)
        await flooding.until("input_audio_buffer.cleared")
    assert order.count(AppendAudio) == 32 * BURST_EVENTS
    # One pass of the event loop reads the event, and another serves it.
    assert order.index(ClearAudio) <= 4 * BURST_EVENTS


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[int | type[Command]]:
    """The commands of all conversations: the size of appended audio, and the type of others."""
    done: list[int | type[Command]] = []
    do = LiveConversation.do

    async def noted(self: LiveConversation, command: Command) -> None:
        done.append(len(command.pcm16) if isinstance(command, AppendAudio) else type(command))
        await do(self, command)

    monkeypatch.setattr(LiveConversation, "do", noted)
    return done


async def set_rate(client: Client) -> None:
    """The first audio sets the rate of the buffer."""
    client.write(APPEND + CLEAR)
    await client.until("input_audio_buffer.cleared")


@pytest.mark.parametrize("turns", [None, {"type": "server_vad"}])
async def test_events_that_have_arrived_are_one_command(
    served: ServedGateway, commands: list[int | type[Command]], turns: object
) -> None:
    async with connected(served, turns) as client:
        await set_rate(client)
        commands.clear()
        client.write(APPEND * (BURST_EVENTS + 3) + CLEAR + APPEND + CLEAR)
        await client.until("input_audio_buffer.cleared")
        await client.until("input_audio_buffer.cleared")
    sizes = [BURST_EVENTS * APPEND_BYTES, 3 * APPEND_BYTES]
    assert commands == [*sizes, ClearAudio, APPEND_BYTES, ClearAudio]


async def test_a_resumable_conversation_counts_each_event(
    served: ServedGateway, commands: list[int | type[Command]]
) -> None:
    async with connected(served, query="&resumable=true") as client:
        commands.clear()
        client.write(APPEND * 3 + CLEAR)
        await client.until("input_audio_buffer.cleared")
    assert commands == [APPEND_BYTES] * 3 + [ClearAudio]


async def test_timed_turns_are_answered_between_two_events(
    served: ServedGateway, commands: list[int | type[Command]]
) -> None:
    async with connected(served) as client:
        session = {"type": "realtime", "antiphon": {"answer_every_s": 60}}
        client.write(frame("session.update", session=session))
        await client.until("session.updated")
        commands.clear()
        client.write(APPEND * 3 + CLEAR)
        await client.until("input_audio_buffer.cleared")
    assert commands == [APPEND_BYTES] * 3 + [ClearAudio]


async def test_an_event_of_a_burst_has_its_own_error(
    served: ServedGateway, commands: list[int | type[Command]]
) -> None:
    async with connected(served) as client:
        await set_rate(client)
        commands.clear()
        wrong = frame("input_audio_buffer.append", audio="%", event_id="wrong")
        client.write(APPEND * 2 + wrong + APPEND * 2 + CLEAR)
        told = await client.until("input_audio_buffer.cleared")
    assert told.count(b'"error"') == 2, "its type and its field"
    assert b'"event_id":"wrong"' in told
    assert commands == [2 * APPEND_BYTES, 2 * APPEND_BYTES, ClearAudio]


async def test_a_sample_may_be_split_between_events_of_a_burst(
    served: ServedGateway, commands: list[int | type[Command]]
) -> None:
    async with connected(served) as client:
        await set_rate(client)
        commands.clear()
        client.write(APPEND + appended(b"a") + appended(b"b") + appended(b"c") + CLEAR)
        await client.until("input_audio_buffer.cleared")
    assert commands == [APPEND_BYTES + 2, ClearAudio]


async def test_a_burst_fills_the_buffer_as_its_events_do_one_by_one(
    commands: list[int | type[Command]],
) -> None:
    tenth = bytes(4_800)
    async with serve_gateway(max_recording_s=SECONDS) as served, connected(served) as client:
        await set_rate(client)
        fitting = b"".join(appended(tenth) for _ in range(20))
        client.write(fitting + appended(tenth, event_id="over") + CLEAR)
        told = await client.until("input_audio_buffer.cleared")
        assert told.count(b'"event_id":"over"') == 1
        # It is cleared, and so has room again.
        commands.clear()
        client.write(fitting + CLEAR)
        assert b'"error"' not in await client.until("input_audio_buffer.cleared")
    assert sum(each for each in commands if isinstance(each, int)) == 20 * len(tenth)
