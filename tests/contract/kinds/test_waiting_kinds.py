"""Streamed requests that wait: headers at once, comments while nothing comes, errors as events.

Proxies close a connection that brings no byte for 50 to 60 s (vllm#47647, LocalAI#11076).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from tests.contract.fake_stages import THINKER
from tests.contract.raw_http import RawClient, post, raw_client
from tests.contract.reading_model import SPEAKER, open_reader
from tests.contract.served_gateway import MESSAGES, MODEL, ServedGateway, serve_gateway
from tests.contract.slotted_stages import (
    QUEUE,
    Gate,
    WaitingRequests,
    open_slotted,
    waiting_requests,
)
from tests.contract.test_transcriptions import file

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT: dict[str, Any] = {"modalities": ["text"]}
COMMENT = b": keepalive\n\n"


@pytest.fixture
def waiting() -> Iterator[WaitingRequests]:
    with waiting_requests() as handler:
        yield handler


@asynccontextmanager
async def full(**settings: Any) -> AsyncIterator[tuple[ServedGateway, Gate]]:
    """A gateway whose only call is taken until the gate lets it through."""
    usual = {"max_calls": 1, "keepalive_s": 3600.0}
    async with serve_gateway(**(QUEUE | usual | settings)) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = asyncio.create_task(served.chat(**TEXT))
        await gate.begun.get()
        yield served, gate
        gate.let_through(2)
        assert (await running).status_code == 200


async def head(client: RawClient) -> tuple[int, str]:
    """Status and headers of a response whose body is still to come."""
    lines = (await client.reader.readuntil(b"\r\n\r\n")).decode()
    return int(lines.split()[1]), lines.lower()


async def chunk(client: RawClient) -> bytes:
    """The next chunk of a body; b"" at its end."""
    size = int(await client.reader.readuntil(b"\r\n"), 16)
    return (await client.reader.readexactly(size + 2))[:-2]


def chat_request(**fields: Any) -> bytes:
    body = {"model": MODEL, "messages": MESSAGES, "stream": True, **TEXT, **fields}
    return post(json.dumps(body).encode())


def error_of(event: bytes) -> dict[str, Any]:
    """The error that an event brings."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    error: dict[str, Any] = json.loads(event[6:])["error"]
    return error


async def test_headers_come_when_a_chat_is_queued(waiting: WaitingRequests) -> None:
    async with full() as (served, gate), raw_client(served) as client:
        await client.send(chat_request(color="red"))
        status, headers = await head(client)
        assert waiting.now == 1, "they came before its turn"
        assert status == 200
        for each in ("text/event-stream", "x-accel-buffering: no", "x-antiphon-ignored: color"):
            assert each in headers
        gate.let_through(2)
        body = b""
        while piece := await chunk(client):
            body += piece
        assert body.endswith(b"data: [DONE]\n\n")
        assert COMMENT not in body


async def test_comments_come_while_a_chat_waits(waiting: WaitingRequests) -> None:
    async with full(keepalive_s=0.02) as (served, _), raw_client(served) as client:
        await client.send(chat_request())
        await head(client)
        assert [await chunk(client) for _ in range(3)] == [COMMENT] * 3
        assert waiting.now == 1


async def test_comments_come_while_a_stage_works_on_a_long_prompt() -> None:
    """Nothing was queued; the answer begins late."""
    async with full(keepalive_s=0.02, max_calls=2) as (served, gate), raw_client(served) as client:
        await client.send(chat_request())
        await gate.begun.get()
        assert (await head(client))[0] == 200
        assert [await chunk(client) for _ in range(2)] == [COMMENT] * 2
        gate.let_through(2)
        pieces = []
        while piece := await chunk(client):
            pieces.append(piece)
        events = [each for each in pieces if each != COMMENT]
        assert all(each.startswith(b"data: ") for each in events)
        assert events[-1].endswith(b"data: [DONE]\n\n")


async def test_comments_come_while_a_stage_is_full() -> None:
    """The gateway does not know why it is refused; it asks again."""
    async with open_slotted(1, told=False, keepalive_s=0.02) as (served, stages):
        stages[THINKER].others = 1_000_000
        async with raw_client(served) as client:
            await client.send(chat_request())
            assert (await head(client))[0] == 200
            assert await chunk(client) == COMMENT
            stages[THINKER].others = 0
            while (piece := await chunk(client)) == COMMENT:
                pass
            assert b"chat.completion.chunk" in piece


async def test_openais_client_reads_over_comments(waiting: WaitingRequests) -> None:
    async with full(keepalive_s=0.02) as (served, gate):
        stream = await served.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, modalities=["text"], stream=True
        )
        assert waiting.now == 1, "it has its stream before its turn"
        gate.let_through(2)
        said = [each.choices[0].delta.content or "" async for each in stream if each.choices]
        assert "".join(said) == "Hello wörld!"


@pytest.mark.parametrize("endpoint", ["chat", "transcriptions"])
async def test_an_error_in_the_queue_is_raised_by_openais_client(
    waiting: WaitingRequests, endpoint: str
) -> None:
    async with full() as (served, _):
        if endpoint == "chat":
            stream: Any = await served.openai.chat.completions.create(
                model=MODEL, messages=MESSAGES, modalities=["text"], stream=True
            )
        else:
            stream = await served.openai.audio.transcriptions.create(
                model=MODEL, file=file(), stream=True
            )
        assert waiting.now == 1
        served.gateway.calls.admission.close()
        with pytest.raises(openai.APIError, match="shutting down") as caught:
            await anext(aiter(stream))
        assert caught.value.code == "unavailable"


async def test_the_error_of_a_queued_chat_is_its_last_event(
    waiting: WaitingRequests, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="gateway.requests")
    async with full(max_waiting=1) as (served, gate), raw_client(served) as client:
        await client.send(chat_request(service_tier="flex"))
        assert (await head(client))[0] == 200
        preferred = asyncio.create_task(served.chat(**TEXT))
        error = error_of(await chunk(client))
        assert (error["type"], error["code"]) == ("rate_limit_error", "resource_exhausted")
        assert await chunk(client) == b""
        # The connection can be used again.
        await client.send(chat_request(temperature=-1))
        assert (await client.response())[0] == 400
        gate.let_through(2)
        assert (await preferred).status_code == 200
    lines = [
        json.loads(each.getMessage()) for each in caplog.records if each.name == "gateway.requests"
    ]
    assert ("200", "resource_exhausted") in {(each["status"], each.get("error")) for each in lines}


async def test_a_client_that_leaves_the_queue_after_its_headers_leaves_nothing(
    waiting: WaitingRequests,
) -> None:
    async with full(keepalive_s=0.02) as (served, _):
        async with raw_client(served) as client:
            await client.send(chat_request())
            await head(client)
            assert await chunk(client) == COMMENT
            await waiting.until(1)
        await waiting.until(0)


async def test_a_transcription_is_begun_when_it_is_queued(waiting: WaitingRequests) -> None:
    async with full(keepalive_s=0.02) as (served, gate):
        form = {"model": MODEL, "stream": "true"}
        asked = served.http.build_request(
            "POST", "/v1/audio/transcriptions", data=form, files={"file": file()}
        )
        answer = await served.http.send(asked, stream=True)
        assert (answer.status_code, waiting.now) == (200, 1)
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(2)] == [": keepalive", ""]
        gate.let_through(2)
        events = [json.loads(each[6:]) async for each in lines if each.startswith("data: ")]
        assert events[-1]["type"] == "transcript.text.done"


@pytest.mark.parametrize(
    ("stream_format", "begun"), [("sse", True), ("audio", False)], ids=["events", "audio"]
)
async def test_speech_is_begun_when_it_is_queued_if_it_has_a_place_for_errors(
    waiting: WaitingRequests, stream_format: str, begun: bool
) -> None:
    """Audio has none: the status is what says that it failed."""
    async with open_reader(max_calls=1, keepalive_s=0.02, **QUEUE) as (fakes, gateway):
        gate = fakes[SPEAKER].script = Gate(SPEAKER, fakes[SPEAKER].script)
        body = {"model": "reader", "input": "Read.", "response_format": "pcm"}
        async with httpx.AsyncClient(base_url=f"http://{gateway.http_address}") as client:
            running = asyncio.create_task(client.post("/v1/audio/speech", json=body))
            await gate.begun.get()
            body["stream_format"] = stream_format
            asked = client.build_request("POST", "/v1/audio/speech", json=body)
            sending = asyncio.create_task(client.send(asked, stream=True))
            await waiting.until(1)
            if begun:
                answer = await sending
                lines = answer.aiter_lines()
                assert await anext(lines) == ": keepalive"
                gateway.calls.admission.close()
                events = [json.loads(each[6:]) async for each in lines if each.startswith("data")]
                assert [each["error"]["code"] for each in events] == ["unavailable"]
            else:
                gateway.calls.admission.close()
                assert (await sending).status_code == 503
            gate.let_through()
            assert (await running).status_code == 200
