"""`/v1/realtime` and clients that ask too much, or what is no event: told, bounded, cut off."""

from __future__ import annotations

import asyncio
import base64
import gc
import socket

import numpy as np
import openai
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from antiphon_gateway.endpoints.realtime.call import BURST_EVENTS
from tests.contract.fake_stages import THINKER
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import MODEL, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SECOND = base64.b64encode(np.zeros(24_000, "<i2").tobytes()).decode()


@pytest.mark.parametrize(
    "frame",
    [
        "{",
        "[]",
        "null",
        '{"type": 5}',
        '{"type": "input_audio_buffer.append", "audio": 5}',
        b"\xff\x00",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"type": "input_audio_buffer.append", "audio": "' + "A" * 400_000 + '!"}',
    ],
    ids=["open", "list", "null", "number", "kind", "bytes", "deep", "deeper", "large"],
)
async def test_frame_that_is_no_event_is_an_error_and_the_call_goes_on(
    served: ServedGateway, frame: str | bytes
) -> None:
    async with realtime(served) as client:
        await client.connection.send_raw(frame)
        assert (await client.until("error"))["error"]["code"] == "invalid_argument"
        await client.say("Still here")


async def test_input_of_a_response_is_bounded_as_a_conversation_is(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.end_turns_itself()
        for _ in range(8):
            await client.send("input_audio_buffer.append", audio=SECOND)
        await client.send("input_audio_buffer.commit")
        item_id = (await client.until("input_audio_buffer.committed"))["item_id"]
        # 384 kB each, of 1 MiB.
        given = [{"type": "item_reference", "id": item_id}] * 3
        settings = {"conversation": "none", "input": given}
        await client.send("response.create", response=settings)
        error = (await client.until("error"))["error"]
        assert error["code"] == "resource_exhausted"
        await client.say("Still here")


async def test_conversation_takes_a_call_only_while_it_is_answered() -> None:
    async with serve_gateway(max_calls=1) as served, realtime(served) as client:
        await client.say("Hi")
        await client.send("response.create")
        await client.until("response.done")
        assert (await served.chat()).status_code == 200


async def test_response_whose_item_finds_no_room_frees_the_stages() -> None:
    async with serve_gateway(max_parts=2) as served, realtime(served) as client:
        await client.say("One")
        await client.say("Two")
        await client.send("response.create", response={"output_modalities": ["text"]})
        done = (await client.until("response.done"))["response"]
        assert done["status"] == "failed"
        assert done["status_details"]["error"]["code"] == "resource_exhausted"
        for session in served.fakes[THINKER].sessions:
            await session.ended.wait()
        first = next(e for e in client.events if e["type"] == "conversation.item.added")
        await client.send("conversation.item.delete", item_id=first["item"]["id"])
        await client.send("response.create", response={"output_modalities": ["text"]})
        assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_client_that_pings_and_reads_nothing_is_cut_off(served: ServedGateway) -> None:
    host, port = served.gateway.http_address.split(":")
    reluctant = socket.socket()
    reluctant.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reluctant.connect((host, int(port)))
    reader, writer = await asyncio.open_connection(sock=reluctant, limit=1024)
    key = base64.b64encode(bytes(16)).decode()
    head = f"GET /v1/realtime?model={MODEL} HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n"
    head += f"connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n"
    writer.write(f"{head}\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    ping = bytes([0x89, 0x80 | 125]) + bytes(4 + 125)

    async def flood() -> None:
        for _ in range(10_000):
            writer.write(ping * 100)
            await writer.drain()

    with pytest.raises(ConnectionError):
        await flood()
    writer.close()
    await served.gateway.calls.wait_idle()


async def test_unknown_model_is_refused_at_the_handshake(
    served: ServedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((InvalidStatus, openai.APIError)) as caught:
        async with realtime(served, "other"):
            raise AssertionError("came in")
    assert "404" in str(caught.value)
    # Nothing is wrong with the gateway.
    assert not [each for each in caplog.records if each.name == "uvicorn.error"]


async def test_pages_of_other_origins_are_refused(served: ServedGateway) -> None:
    async with realtime(served, Origin=served.url) as client:
        await client.say("Hi")
    with pytest.raises((InvalidStatus, openai.APIError)) as caught:
        async with realtime(served, Origin="https://elsewhere.example"):
            raise AssertionError("came in")
    assert "403" in str(caught.value)


@pytest.mark.parametrize(
    ("allowed", "comes_in"),
    [
        (("*",), True),
        (("https://app.example", "https://elsewhere.example"), True),
        (("https://app.example",), False),
        (("https://elsewhere.example:8443",), False),
    ],
)
async def test_pages_of_the_origins_that_are_named_may_ask(
    allowed: tuple[str, ...], comes_in: bool
) -> None:
    page = "https://elsewhere.example"
    async with serve_gateway(cors_origins=allowed) as served:
        answer = await served.http.get("/v1/models", headers={"origin": page})
        assert ("access-control-allow-origin" in answer.headers) is comes_in
        if comes_in:
            async with realtime(served, Origin=page) as client:
                await client.say("Hi")
        else:
            with pytest.raises(InvalidStatus, match="403"):
                async with realtime(served, Origin=page):
                    raise AssertionError("came in")


async def test_message_of_very_many_fragments_is_too_big(served: ServedGateway) -> None:
    async def fragments() -> object:
        for _ in range(5000):
            yield ""

    async with realtime(served) as client:

        async def flood() -> None:
            await client.connection.send_raw(fragments())  # type: ignore[arg-type]
            await client.next()

        with pytest.raises(ConnectionClosedError) as caught:
            await flood()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


async def test_event_of_very_many_values_is_refused_before_it_is_decoded() -> None:
    async with serve_gateway(max_body_values=100) as served, realtime(served) as client:
        part = {"type": "input_text", "text": "Hi"}
        item = {"type": "message", "role": "user", "content": [part] * 99}
        await client.send("conversation.item.create", item=item)
        assert "max_body_values" in (await client.until("error"))["error"]["message"]
        await client.say("Still here")


async def test_a_burst_of_small_events_lets_others_run(served: ServedGateway) -> None:
    burst, turns, counts = 3000, 0, True

    async def count() -> None:
        nonlocal turns
        while counts:
            turns += 1
            await asyncio.sleep(0)

    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    try:
        writer.write(HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b'"session.created"')
        # Masked, all zeros: an empty object.
        writer.write(b"\x81\x82\0\0\0\0{}" * burst)
        counting = asyncio.create_task(count())
        for _ in range(burst):
            await reader.readuntil(b'"error",')
    finally:
        counts = False
        writer.close()
    await counting
    assert turns >= burst // BURST_EVENTS


async def test_text_that_is_no_utf_8_ends_the_connection_and_logs_no_traceback(
    served: ServedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    # What earlier tests left, such as tasks that failed, is logged when it is collected.
    gc.collect()
    caplog.clear()
    for frames in (
        b"\x81\x82\0\0\0\0\xff\xfe",
        # In two fragments, of which the second is not UTF-8 by itself: it is one character.
        b"\x01\x81\0\0\0\0\xc3" + b"\x80\x82\0\0\0\0\xa4\xff",
    ):
        reader, writer = await asyncio.open_connection(
            *served.url.removeprefix("http://").split(":")
        )
        writer.write(HANDSHAKE)
        await reader.readuntil(b'"session.created"')
        writer.write(frames)
        answer = await reader.read()
        writer.close()
        assert b"\x03\xefnot UTF-8" in answer
    async with realtime(served) as client:
        await client.say("Ünïcödé")
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
