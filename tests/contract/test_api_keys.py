"""API keys at every endpoint: who may ask, what a key may take, and what logs say of it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import websockets

import antiphon
from antiphon.client.retrying import Retry
from antiphon.errors import ResourceExhausted, Unauthenticated
from antiphon_gateway.keys.key_file import digest_of, new_key
from antiphon_tools.load.drivers import connected
from antiphon_tools.load.measured import Trace
from antiphon_tools.load.options import read_options
from antiphon_tools.load.target import target_at
from tests.contract.converse_client import said
from tests.contract.fake_stages import THINKER, Session, think
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway, serve_gateway
from tests.contract.slotted_stages import Gate

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPEN_PATHS = ("/health", "/metrics", "/version", "/openapi.json", "/docs", "/")


def entry(name: str, key: str, **limits: int) -> dict[str, object]:
    return {"name": name, "sha256": digest_of(key), **limits}


def write(path: Path, *entries: dict[str, object]) -> None:
    path.write_bytes(msgspec.yaml.encode({"keys": entries}))


@asynccontextmanager
async def keyed_gateway(path: Path, *entries: dict[str, object]) -> AsyncIterator[ServedGateway]:
    write(path, *entries)
    async with serve_gateway(keys_file=str(path), keys_reload_s=0.001) as served:
        yield served


def with_key(served: ServedGateway, key: str) -> None:
    """Have the clients of the endpoint send the key."""
    served.http.headers["authorization"] = f"Bearer {key}"
    served.openai.api_key = key


async def test_every_endpoint_wants_a_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="gateway.requests")
    key = new_key()
    async with keyed_gateway(tmp_path / "keys", entry("app", key)) as served:
        for path in OPEN_PATHS:
            assert (await served.http.get(path)).status_code == 200
        for path in ("/v1/models", "/v1/audio/voices", "/v1/nothing"):
            assert (await served.http.get(path)).status_code == 401
        refused = await served.chat()
        assert refused.status_code == 401
        assert refused.headers["x-should-retry"] == "false"
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert refused.json()["error"]["type"] == "invalid_request_error"
        with pytest.raises(openai.AuthenticationError):
            await served.openai.models.list()
        async with antiphon.AsyncClient(served.gateway.grpc_address) as client:
            with pytest.raises(Unauthenticated):
                await client.generate("Hi").collect()
            with pytest.raises(Unauthenticated):
                await client.server_info()
            with pytest.raises(Unauthenticated):
                async with client.converse():
                    pass
        with pytest.raises((websockets.InvalidStatus, openai.APIError), match="401"):
            async with realtime(served):
                pass
        assert not served.fakes[THINKER].sessions

        with_key(served, key)
        assert (await served.chat()).status_code == 200
        assert MODEL in [each.id async for each in served.openai.models.list()]
        async with antiphon.AsyncClient(
            served.gateway.grpc_address, api_key=key, key_in_clear=True
        ) as client:
            assert (await client.generate("Hi").collect()).text
            await client.server_info()
            async with client.converse() as spoken:
                await said(spoken, "Hi")
                await spoken.respond()
                spoken.finish()
                assert [event async for event in spoken]
        async with realtime(served) as call:
            await call.say("Hi")
            await call.send("response.create")
            assert (await call.until("response.done"))["response"]["status"] == "completed"
        await served.gateway.calls.wait_idle()
        sample = 'antiphon_gateway_not_admitted_total{reason="no_key"}'
        assert await served.metric(sample) > 0
    assert key not in caplog.text
    records = [each for each in caplog.records if each.name == "gateway.requests"]
    lines = [json.loads(each.getMessage()) for each in records]
    named = {(each["api"], each.get("key")) for each in lines if each["status"] in ("200", "OK")}
    assert named >= {("http", "app"), ("grpc", "app"), ("realtime", "app")}


async def test_a_browser_sends_the_key_of_a_websocket_as_a_protocol(tmp_path: Path) -> None:
    key = new_key()
    async with keyed_gateway(tmp_path / "keys", entry("app", key)) as served:
        url = f"ws://{served.gateway.http_address}/v1/realtime?model={MODEL}"
        offered: list[Any] = ["realtime", f"openai-insecure-api-key.{key}"]
        async with websockets.connect(url, subprotocols=offered) as socket:
            assert socket.subprotocol == "realtime"
            assert json.loads(await socket.recv())["type"] == "session.created"
        offered[1] = "openai-insecure-api-key.wrong"
        with pytest.raises(websockets.InvalidStatus) as caught:
            async with websockets.connect(url, subprotocols=offered):
                pass
        assert caught.value.response.status_code == 401


async def test_limits_of_a_key_are_a_429_that_names_them_and_no_others_suffer(
    tmp_path: Path,
) -> None:
    narrow, wide = new_key(), new_key()
    limits = {"concurrency": 1, "requests_per_minute": 3, "audio_seconds_per_minute": 1}
    path = tmp_path / "keys"
    async with keyed_gateway(
        path, entry("narrow", narrow, **limits), entry("wide", wide)
    ) as served:
        with_key(served, narrow)
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = asyncio.create_task(served.chat())
        await gate.begun.get()

        async def refused(limit: str, **fields: Any) -> None:
            answer = await served.chat(**fields)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (429, f"key_{limit}")
            assert error["type"] == "rate_limit_error"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert limit in error["message"]
            reason = f'antiphon_gateway_not_admitted_total{{reason="key_{limit}"}}'
            assert await served.metric(reason) >= 1

        await refused("concurrency")
        async with antiphon.AsyncClient(
            served.gateway.grpc_address, api_key=narrow, key_in_clear=True, retry=Retry(attempts=1)
        ) as client:
            with pytest.raises(
                ResourceExhausted, match="the key narrow has reached its limit concurrency"
            ):
                await client.generate("Hi").collect()
        gate.let_through(10)
        assert (await running).status_code == 200
        # Of 0.46 s each, so a third one would be the first beyond a second.
        assert (await served.chat(**SPOKEN)).status_code == 200
        assert (await served.chat(**SPOKEN)).status_code == 200
        await refused("requests_per_minute")
        write(path, entry("narrow", narrow, audio_seconds_per_minute=1), entry("wide", wide))
        assert (await served.chat(**SPOKEN)).status_code == 200
        await refused("audio_seconds_per_minute")
        with_key(served, wide)
        assert (await served.chat(**SPOKEN)).status_code == 200
        write(path, entry("wide", wide))
        with_key(served, narrow)
        assert (await served.chat()).status_code == 401


async def test_conversations_and_responses_of_a_key_are_bounded(tmp_path: Path) -> None:
    key = new_key()
    limits = {"conversations": 1, "requests_per_minute": 1}
    async with keyed_gateway(tmp_path / "keys", entry("app", key, **limits)) as served:
        with_key(served, key)
        async with realtime(served) as call:
            with pytest.raises((websockets.InvalidStatus, openai.APIError), match="429"):
                async with realtime(served):
                    pass
            await call.say("Hi")
            await call.send("response.create")
            assert (await call.until("response.done"))["response"]["status"] == "completed"
            await call.send("response.create")
            done = (await call.until("response.done"))["response"]
            assert done["status"] == "failed"
            assert done["status_details"]["error"]["code"] == "key_requests_per_minute"


def wants_transcript(session: Session) -> bool:
    assert session.input is not None
    return b"Transcribe the audio" in bytes(session.input.tensors["messages"])


async def test_transcripts_of_a_key_count_in_its_minute_and_refuse_no_answer_beside_them(
    tmp_path: Path,
) -> None:
    key = new_key()
    limits = {"concurrency": 1, "requests_per_minute": 2}
    audio = {"input": {"transcription": {"model": "whisper-1"}, "turn_detection": None}}
    wish = {"type": "realtime", "output_modalities": ["text"], "audio": audio}
    second = base64.b64encode(bytes(48_000)).decode()
    transcript = "conversation.item.input_audio_transcription"
    ends = (f"{transcript}.completed", f"{transcript}.failed")
    async with keyed_gateway(tmp_path / "keys", entry("app", key, **limits)) as served:
        with_key(served, key)
        gate = Gate(THINKER)

        async def answer_when_let(session: Session) -> None:
            await (think(session) if wants_transcript(session) else gate(session))

        served.fakes[THINKER].script = answer_when_let
        async with realtime(served) as call:
            await call.send("session.update", session=wish)
            await call.say("Hi")
            await call.send("response.create")
            await gate.begun.get()
            for end in ends:
                await call.send("input_audio_buffer.append", audio=second)
                await call.send("input_audio_buffer.commit")
                while (told := await call.next())["type"] not in ends:
                    pass
                assert told["type"] == end
            assert told["error"]["code"] == "key_requests_per_minute"
            gate.let_through()
            assert (await call.until("response.done"))["response"]["status"] == "completed"


async def test_pages_of_other_origins_learn_when_to_ask_again_and_need_no_key_to_ask_whether(
    tmp_path: Path,
) -> None:
    path = tmp_path / "keys"
    write(path, entry("app", new_key()))
    origin = "https://app.example"
    async with serve_gateway(keys_file=os.fspath(path), cors_origins=(origin,)) as served:
        asked = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        preflight = await served.http.options("/v1/chat/completions", headers=asked)
        assert preflight.status_code == 200
        body = {"model": MODEL, "messages": MESSAGES}
        refused = await served.http.post(
            "/v1/chat/completions", json=body, headers={"origin": origin}
        )
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == origin


async def test_idle_conversations_of_one_key_give_way_to_those_of_others(tmp_path: Path) -> None:
    """One key takes all of them; another one gets in, over WebSocket and over gRPC."""
    greedy, modest = new_key(), new_key()
    path = tmp_path / "keys"
    write(path, entry("greedy", greedy), entry("modest", modest))
    settings = {"keys_file": str(path), "max_conversations": 4}
    async with serve_gateway(**settings) as served, AsyncExitStack() as stack:
        with_key(served, greedy)
        held = [await stack.enter_async_context(realtime(served)) for _ in range(3)]
        client = await stack.enter_async_context(
            antiphon.AsyncClient(served.gateway.grpc_address, api_key=greedy, key_in_clear=True)
        )
        over_grpc = await stack.enter_async_context(client.converse())
        await said(over_grpc, "Hi")
        await held[0].say("Hi")
        with pytest.raises((websockets.InvalidStatus, openai.APIError), match="429"):
            async with realtime(served):
                pass
        with_key(served, modest)
        async with realtime(served) as call:
            await call.say("Hi")
            error = await held[1].until("error")
            assert "make room for another API key" in error["error"]["message"]
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await held[1].next_of_any_kind()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013
            async with realtime(served) as another:
                await another.say("Hi")
                assert (
                    "make room for another API key"
                    in (await held[2].until("error"))["error"]["message"]
                )
        await held[0].say("Hi again")


async def test_conversations_of_a_withdrawn_key_end_at_every_endpoint(tmp_path: Path) -> None:
    path, key, other = tmp_path / "keys", new_key(), new_key()
    async with keyed_gateway(path, entry("app", key), entry("other", other)) as served:
        with_key(served, other)
        async with AsyncExitStack() as stack:
            stays = await stack.enter_async_context(realtime(served))
            with_key(served, key)
            ends = await stack.enter_async_context(realtime(served))
            client = await stack.enter_async_context(
                antiphon.AsyncClient(served.gateway.grpc_address, api_key=key, key_in_clear=True)
            )
            over_grpc = await stack.enter_async_context(client.converse())
            await said(over_grpc, "Hi")
            write(path, entry("other", other))
            error = await ends.until("error")
            assert error["error"]["code"] == "invalid_api_key"
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await ends.next_of_any_kind()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
            with pytest.raises(Unauthenticated):
                async for _ in over_grpc:
                    pass
            await stays.say("Hi")


@pytest.mark.parametrize("endpoint", ["http", "grpc"])
async def test_load_test_sends_its_key(tmp_path: Path, endpoint: str) -> None:
    key = new_key()
    async with keyed_gateway(tmp_path / "keys", entry("load", key)) as served:
        address = served.url if endpoint == "http" else served.gateway.grpc_address
        asked = ["gateway", "--target", address]
        target = target_at("gateway", address)
        with pytest.raises(Unauthenticated):
            async with connected(read_options(asked), target):
                raise AssertionError("a load test without a key came in")
        trace = Trace(0, 0.0)
        async with connected(read_options([*asked, "--api-key", key]), target) as driver:
            await driver.ask(trace)
        assert trace.texts
