"""Whatever comes through a WebSocket, other conversations go on, and nothing is left of it.

Rounds of clients made from a seed, beside an honest one that has a turn after each. Longer by hand,
and what failed again:

    pytest tests/contract/test_realtime_fuzz.py --fuzz-seconds 600 --fuzz-seed 7
    pytest tests/contract/test_realtime_fuzz.py --fuzz-seed 7/3/5
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import struct
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from antiphon.v1 import session_pb2
from antiphon.wire.chunks import chunk_from_proto
from antiphon_gateway.voice_activity.listener import MOST_FRAMES
from antiphon_gateway.voice_activity.network import FRAME_SAMPLES, RATE_HZ
from tests.contract.fake_stages import ROLES, THINKER, USUAL, Session
from tests.contract.fuzz_cases import strange_json
from tests.contract.fuzz_files import mutated
from tests.contract.realtime_client import Realtime, realtime
from tests.contract.served_gateway import MODEL, ServedGateway, answering, serve_gateway
from tests.contract.test_endpoint_fuzz import (
    MAX_KEPT_BYTES,
    PATIENT,
    QUIET_S,
    Wrong,
    _kept_bytes,
    check_left,
    left,
)

CLIENTS = 12
WARM_UP_ROUNDS = 2
SHARE = 0.5
"""Of the time that fuzzes have."""
HUGE_BYTES = 17 << 20
MOST_SAMPLES = (MOST_FRAMES + 2) * FRAME_SAMPLES * 24_000 // RATE_HZ
"""Of the API, for more frames than are heard together."""
"""More than a message may have."""


async def answer_each(session: Session) -> None:
    """The usual script for every segment that comes, until the client has left."""
    await USUAL[session.role](session)
    async for request in session.requests:
        if not request.HasField("segment_open"):
            continue
        session.segment = request.segment_open
        if session.role == THINKER:
            session.input = chunk_from_proto((await anext(session.requests)).chunk)
        opened = session_pb2.SegmentOpened(segment=session.segment.segment)
        await session.context.write(session_pb2.SessionResponse(segment_opened=opened))
        await USUAL[session.role](session)


def audio(random: Random) -> str:
    data = base64.b64encode(random.randbytes(random.choice((0, 1, 2, 480, 4_800, 48_000))))
    return mutated(data, random, 1).decode("latin-1") if random.random() < 0.2 else data.decode()


def item(random: Random) -> dict[str, Any]:
    role = random.choice(("user", "system", "assistant", "tool"))
    parts = [
        {"type": "input_text", "text": "Hi"},
        {"type": "output_text", "text": "Yes"},
        {"type": "input_audio", "audio": audio(random)},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
    ]
    content = [random.choice(parts) for _ in range(random.choice((0, 1, 1, 2)))]
    kind = random.choice(
        ("message", "message", "message", "function_call_output", "item_reference")
    )
    given = {"type": kind, "role": role, "content": content, "call_id": "c", "output": "o"}
    return given | (
        {"id": random.choice(("one", "two", "x" * 200))} if random.random() < 0.5 else {}
    )


def session(random: Random) -> dict[str, Any]:
    form = {"type": random.choice(("audio/pcm", "audio/pcmu", "audio/pcma", "audio/opus"))}
    turns = random.choice(
        (None, {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 200},
         {"type": "semantic_vad", "eagerness": "high"})
    )  # fmt: skip
    heard = {"format": form, "turn_detection": turns, "transcription": {"model": "any"}}
    return {
        "type": "realtime",
        "instructions": "Be brief.",
        "output_modalities": [random.choice(("text", "audio"))],
        "max_output_tokens": random.choice((7, "inf")),
        "audio": {"input": heard, "output": {"format": form, "voice": "ethan"}},
    }


EVENTS: dict[str, Callable[[Random], dict[str, Any]]] = {
    "session.update": lambda random: {"session": session(random)},
    "input_audio_buffer.append": lambda random: {"audio": audio(random)},
    "input_audio_buffer.commit": lambda random: {},
    "input_audio_buffer.clear": lambda random: {},
    "conversation.item.create": lambda random: {"item": item(random), "previous_item_id": "one"},
    "conversation.item.retrieve": lambda random: {"item_id": "one"},
    "conversation.item.delete": lambda random: {"item_id": random.choice(("one", "two"))},
    "conversation.item.truncate": lambda random: {
        "item_id": "one", "content_index": 0, "audio_end_ms": random.choice((0, 100, -1)),
    },
    "response.create": lambda random: {
        "response": {
            "conversation": random.choice(("none", "auto")),
            "input": [item(random)],
            "metadata": {"key": "value"},
            "output_modalities": ["text"],
        }
    },
    "response.cancel": lambda random: {},
    "output_audio_buffer.clear": lambda random: {},
    "no.such.event": lambda random: {"data": []},
}  # fmt: skip


def message(random: Random) -> str | bytes:
    """One that a client may send, strange or not, as text or as bytes."""
    kind = random.choice(tuple(EVENTS))
    event = {"type": kind, "event_id": "mine", **EVENTS[kind](random)}
    data = strange_json(random, event) if random.random() < 0.5 else json.dumps(event).encode()
    if random.random() < 0.2:
        data = mutated(data, random)
    if random.random() < 0.01:
        data = b" " * HUGE_BYTES
    return data if random.random() < 0.2 else data.decode(errors="replace")


def pieces(random: Random, data: str | bytes) -> str | bytes | list[Any]:
    """The message, or its fragments, some of them empty."""
    if random.random() < 0.7:
        return data
    size = max(1, len(data) // random.choice((2, 5, 2_000)))
    return [data[at : at + size] for at in range(0, len(data), size)] + [data[:0]]


async def be_strange(served: ServedGateway, name: str) -> None:
    """One client from the handshake to its end. Raises `Wrong` for what no endpoint may say."""
    random = Random(name)
    url = f"{served.url.replace('http', 'ws')}/v1/realtime?model={MODEL}"
    if random.random() < 0.2:
        await be_half_open(served, random)
        return
    said: list[str | bytes] = []
    connection = await connect(url, max_size=None, ping_interval=None, open_timeout=QUIET_S)
    reading = asyncio.create_task(_read(connection, said))
    with contextlib.suppress(ConnectionClosed):
        for _ in range(random.randrange(1, 30)):
            await connection.send(pieces(random, message(random)))
            if random.random() < 0.1:
                await connection.ping()
    if random.random() < 0.4:
        connection.transport.abort()
    else:
        await connection.close()
    await asyncio.wait((reading,), timeout=QUIET_S)
    for each in said:
        if b'"internal"' in (each if isinstance(each, bytes) else each.encode()):
            raise Wrong(f"again with --fuzz-seed {name}: {each[:2000]!r}")


async def _read(connection: ClientConnection, said: list[str | bytes]) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            said.append(await connection.recv())


async def be_half_open(served: ServedGateway, random: Random) -> None:
    """A handshake that is none, or after a good one what is no frame; then the client is gone."""
    host, _, port = served.gateway.http_address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    key = base64.b64encode(random.randbytes(random.choice((16, 16, 16, 3)))).decode()
    head = (
        f"GET /v1/realtime?model={random.choice((MODEL, 'other'))} HTTP/1.1\r\nHost: localhost\r\n"
        f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        f"Sec-WebSocket-Version: {random.choice((13, 13, 13, 7))}\r\n\r\n"
    ).encode()
    frame = random.choice(
        (
            b"",
            b"\x81",
            b"\x81\xfe",
            # A frame of a length that never comes, one that is not masked, reserved bits, junk.
            struct.pack("!BBQ", 0x81, 0xFF, 1 << 62),
            struct.pack("!BBHI", 0x81, 0xFE, 60_000, 7) + b"x" * 500,
            b"\x81\x05Hello",
            b"\xf1\x80\0\0\0\0",
            b"\x80\x80\0\0\0\0",
            random.randbytes(3_000),
        )
    )
    with contextlib.suppress(OSError):
        writer.write(head[: random.randrange(len(head))] if random.random() < 0.2 else head + frame)
        await writer.drain()
    if random.random() < 0.5:
        writer.transport.abort()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def have_a_turn(client: Realtime) -> None:
    start = len(client.events)
    await client.say("Still there?")
    await client.send("response.create")
    done = (await client.until("response.done"))["response"]
    assert done["status"] == "completed", client.events[start:]
    for each in (client.events[start + 1]["item"]["id"], done["output"][0]["id"]):
        await client.send("conversation.item.delete", item_id=each)
        await client.until("conversation.item.deleted")


@pytest.mark.timeout(0)
async def test_websocket_stands_whatever_comes_through_it(request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--fuzz-seed")
    seconds = SHARE * request.config.getoption("--fuzz-seconds")
    until = asyncio.get_running_loop().time() + seconds
    async with serve_gateway(**PATIENT) as served:
        for role in ROLES:
            served.fakes[role].script = answer_each
        if "/" in seed:
            await be_strange(served, seed)
            return
        before = await left(served)
        number = 0
        async with realtime(served) as honest:
            # What detects turns is loaded with the first audio, and stays; so do its arrays, which
            # are as large as the most frames heard together need.
            silence = base64.b64encode(bytes(2 * MOST_SAMPLES)).decode()
            await honest.send("input_audio_buffer.append", audio=silence)
            await honest.end_turns_itself()
            while number <= WARM_UP_ROUNDS or asyncio.get_running_loop().time() < until:
                names = [f"{seed}/{number}/{each}" for each in range(CLIENTS)]
                async with asyncio.timeout(4 * QUIET_S):
                    await asyncio.gather(*(be_strange(served, name) for name in names))
                    await have_a_turn(honest)
                honest.events.clear()
                for role in ROLES:
                    served.fakes[role].sessions[:] = served.fakes[role].sessions[-1:]
                number += 1
                if number == WARM_UP_ROUNDS:
                    tracemalloc.start()
        where = f"seed {seed}, after {number} rounds"
        for role in ROLES:
            for stage in served.fakes[role].sessions:
                await stage.ended.wait()
        served.fakes.reset()
        if tasks := answering():
            await asyncio.wait(tasks, timeout=QUIET_S)
        await check_left(served, before, where)
        kept = _kept_bytes()
        print(f"{where}: {number * CLIENTS} clients, {kept >> 10} KiB kept")
        assert kept < MAX_KEPT_BYTES, f"{where}: {kept >> 10} KiB are kept"
        for gauge in ("conversations", "in_flight"):
            assert await served.metric(f"antiphon_gateway_{gauge}") == 0, gauge
        assert not await served.held()
