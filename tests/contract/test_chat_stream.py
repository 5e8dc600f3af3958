from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from antiphon.errors import Internal, InvalidArgument
from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import CODE2WAV, FRAMES, TALKER, THINKER, Session, samples_of, stall
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

PCM16 = np.rint(samples_of(sum(FRAMES), 0) * 32767).astype("<i2").tobytes()


async def odd_sizes(session: Session) -> None:
    """Chunks of 1, 2, 4 and 5 samples: none is a multiple of three."""
    await session.opened()
    start = 0
    for count in (1, 2, 4, 5):
        tensors = {
            "samples": np.linspace(-1, 1, count, dtype=np.float32),
            "codes": np.zeros((1, 16), np.uint16),
        }
        await session.chunk("audio", tensors, position=start)
        start += count
    await session.chunk("audio", position=start, finish=FinishReason.STOP)
    await session.report()


async def pour_without_end(session: Session) -> None:
    await session.opened()
    while True:
        await session.text("x" * 262_144)


async def events_of(served: ServedGateway, **fields: Any) -> list[Any]:
    """All server-sent events of a stream; the last one must be [DONE]."""
    response = await served.chat(stream=True, **fields)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_stream_order_when_text_only(served: ServedGateway) -> None:
    events = await events_of(served)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " wörld"},
        {"content": "!"},
        {},
    ]
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None, None, None, None, "stop"]
    assert len({(e["id"], e["created"], e["model"], e["object"]) for e in events}) == 1
    assert not any("usage" in event for event in events)


async def test_stream_order_when_spoken(served: ServedGateway) -> None:
    events = await events_of(served, **SPOKEN, stream_options={"include_usage": True})
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens_details"]["audio_tokens"] == sum(FRAMES)
    assert all(event["usage"] is None for event in events)
    first, *middle, reason, expiry = [event["choices"][0] for event in events]
    assert first["delta"]["role"] == "assistant"
    assert first["delta"]["audio"].keys() == {"id", "transcript"}
    assert (reason["delta"], reason["finish_reason"]) == ({}, "stop")
    assert expiry["delta"]["audio"].keys() == {"expires_at"}
    pieces = [choice["delta"]["audio"] for choice in middle]
    assert all(piece.keys() in ({"transcript"}, {"data"}) for piece in pieces)
    assert "".join(piece.get("transcript", "") for piece in pieces) == "Hello wörld!"
    assert b"".join(base64.b64decode(piece.get("data", "")) for piece in pieces) == PCM16


async def test_stream_base64_joins_up_when_chunks_have_odd_sizes(served: ServedGateway) -> None:
    served.fakes[CODE2WAV].script = odd_sizes
    events = await events_of(served, **SPOKEN)
    deltas = [event["choices"][0]["delta"] for event in events]
    pieces = [d["audio"]["data"] for d in deltas if "data" in d.get("audio", {})]
    assert all(len(base64.b64decode(piece)) % 6 == 0 for piece in pieces[:-1])
    joined = base64.b64decode("".join(pieces), validate=True)
    assert joined == b"".join(base64.b64decode(piece) for piece in pieces)
    assert len(joined) == (1 + 2 + 4 + 5) * 2


async def test_stream_works_with_the_async_client(served: ServedGateway) -> None:
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello wörld!"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 25


async def test_stream_works_with_the_stream_helper_when_spoken(served: ServedGateway) -> None:
    def listen() -> Any:
        with (
            openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client,
            client.chat.completions.stream(model=MODEL, messages=MESSAGES, **SPOKEN) as stream,
        ):
            return stream.get_final_completion()

    completion = await asyncio.to_thread(listen)
    audio = completion.choices[0].message.audio
    assert audio.transcript == "Hello wörld!"
    assert base64.b64decode(audio.data) == PCM16
    assert audio.expires_at >= completion.created + 3600
    assert completion.choices[0].finish_reason == "stop"


async def test_stream_sends_text_before_the_answer_is_complete(served: ServedGateway) -> None:
    go_on = asyncio.Event()

    async def pause(session: Session) -> None:
        await session.opened()
        await session.text("One")
        await go_on.wait()
        await session.text("two", finish=FinishReason.STOP)
        await session.report()

    served.fakes[THINKER].script = pause
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True
    )
    texts: list[str] = []
    async for chunk in stream:
        texts.append(chunk.choices[0].delta.content or "")
        if texts[-1] == "One":
            go_on.set()
    assert "".join(texts) == "Onetwo"


async def test_stream_is_a_400_when_the_thinker_refuses_the_prompt(served: ServedGateway) -> None:
    async def refuse(session: Session) -> None:
        await session.opened()
        await session.error(InvalidArgument("the prompt is too long", field="messages"))

    served.fakes[THINKER].script = refuse
    served.fakes[TALKER].script = served.fakes[CODE2WAV].script = stall
    response = await served.chat(stream=True, **SPOKEN)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("messages", "invalid_argument")
    assert error["type"] == "invalid_request_error"


async def test_stream_ends_with_an_error_event_when_a_stage_fails_midway(
    served: ServedGateway,
) -> None:
    async def break_off(session: Session) -> None:
        await session.opened()
        await session.text("Hel")
        await session.error(Internal("the engine broke"))

    served.fakes[THINKER].script = break_off
    response = await served.chat(stream=True)
    assert response.status_code == 200
    last = response.text.rstrip().split("\n\n")[-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["message"], error["code"]) == ("the engine broke", "internal")
    assert "[DONE]" not in response.text


async def test_stream_raises_in_the_client_when_a_stage_fails_midway(served: ServedGateway) -> None:
    async def break_off(session: Session) -> None:
        await session.opened()
        await session.text("Hel")
        await session.error(Internal("the engine broke"))

    served.fakes[THINKER].script = break_off
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True
    )
    with pytest.raises(openai.APIError, match="the engine broke"):
        async for _ in stream:
            pass


@pytest.mark.parametrize("stream", [True, False])
async def test_disconnect_frees_all_stages(served: ServedGateway, stream: bool) -> None:
    begun = asyncio.Event()

    async def endless(session: Session) -> None:
        await session.opened()
        await session.text("begun")
        begun.set()
        await asyncio.Event().wait()

    served.fakes[THINKER].script = endless
    body = {"model": MODEL, "messages": MESSAGES, "stream": stream, **SPOKEN}
    async with httpx.AsyncClient(base_url=served.url) as leaving:
        asking = asyncio.create_task(leaving.post("/v1/chat/completions", json=body))
        await begun.wait()
        await served.fakes.wait_begun()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    for session in served.fakes.sessions():
        await session.ended.wait()
    assert served.fakes[THINKER].sessions[0].cancelled.is_set()
    await served.gateway.calls.wait_idle()


async def test_stream_stops_reading_from_the_stages_when_the_client_does_not_read(
    served: ServedGateway,
) -> None:
    all_written = asyncio.Event()
    ended = asyncio.Event()

    async def pour(session: Session) -> None:
        await session.opened()
        try:
            for _ in range(150):
                await session.text("x" * 262_144)
            all_written.set()
        finally:
            ended.set()

    served.fakes[THINKER].script = pour
    body = {"model": MODEL, "messages": MESSAGES, "stream": True}
    async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(all_written.wait(), 1)
    await ended.wait()
    await served.gateway.calls.wait_idle()


async def test_stages_are_freed_when_the_client_takes_nothing_for_too_long() -> None:
    # Longer than any pause of this process, which is the client as well.
    async with serve_gateway(send_timeout_s=3) as served:
        served.fakes[THINKER].script = pour_without_end
        body = {"model": MODEL, "messages": MESSAGES, "stream": True}
        async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            await served.fakes[THINKER].sessions[0].ended.wait()
            await served.gateway.calls.wait_idle()
