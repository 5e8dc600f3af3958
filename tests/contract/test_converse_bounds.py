"""`Converse` and clients that ask what cannot be, too much, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

import antiphon
from antiphon.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from antiphon.v1 import converse_pb2
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import speech_stub
from antiphon_gateway.keys.key_file import digest_of, new_key
from tests.contract.converse_client import read_to_end, said, until
from tests.contract.fake_stages import THINKER, Session, stall
from tests.contract.served_gateway import ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELD = 'antiphon_gateway_memory_bytes{holder="conversations"}'

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "open": ({"open": {}}, "open"),
    "nothing": ({}, "command"),
    "name": ({"reference": "é" * 65, "commit_audio": {}}, "reference"),
    "role": ({"create_item": {"item": {"role": "robot"}}}, "create_item.item.role"),
    "contents": ({"create_item": {"item": {"role": "user"}}}, "create_item.item.contents"),
    "samples": ({"append_audio": {"pcm16": b"123"}}, "append_audio.pcm16"),
    "rate": ({"append_audio": {"pcm16": b"12", "rate_hz": 4_000}}, "append_audio.rate_hz"),
    "heard": ({"truncate_item": {"heard_s": float("nan")}}, "truncate_item.heard_s"),
    "metadata": (
        {"create_response": {"metadata": {"a": "b" * 513}}},
        "create_response.metadata",
    ),
    "input": ({"create_response": {"input": [{}]}}, "create_response.input[0]"),
    "sampling": (
        {"change_settings": {"settings": {"sampling": {"": {"temperature": -1}}}}},
        "settings.sampling.temperature",
    ),
    "turns": (
        {"change_settings": {"settings": {"voice_turns": {"silence_s": float("nan")}}}},
        "settings.voice_turns.silence_s",
    ),
    "recorded": (
        {"create_item": {"item": {"role": "assistant", "contents": [{"recorded": {}}]}}},
        "create_item.item.contents[0]",
    ),
    "none": ({"delete_item": {"item_id": "x"}}, "item_id"),
    "audio": ({"commit_audio": {}}, ""),
}


async def test_command_that_cannot_be_is_told_and_the_conversation_goes_on(
    served: ServedGateway,
) -> None:
    async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
        call = speech_stub(channel).Converse()
        await call.write(converse_pb2.ConverseRequest(open=converse_pb2.OpenConversation()))
        assert (await call.read()).HasField("begun")  # type: ignore[union-attr]
        for name, (fields, field) in REFUSED.items():
            await call.write(converse_pb2.ConverseRequest(**({"reference": name} | fields)))
            event = await call.read()
            assert isinstance(event, converse_pb2.ConverseResponse)
            assert event.HasField("refused"), name
            assert (event.refused.error.field, event.refused.error.message != "") == (field, True)
            assert event.refused.reference == ("" if name == "name" else name)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "open"),
        (b"\xff\xff", ""),
        (converse_pb2.ConverseRequest(commit_audio={}).SerializeToString(), "open"),
        (None, "open"),
    ],
    ids=["empty", "no_message", "another", "nothing"],
)
async def test_conversation_that_does_not_begin_with_open_is_refused(
    served: ServedGateway, data: bytes | None, field: str
) -> None:
    async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
        call = channel.stream_stream("/antiphon.v1.SpeechService/Converse")()
        if data is not None:
            await call.write(data)
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = error_from_rpc(caught.value)
        assert (type(error), error.field) == (InvalidArgument, field)


async def test_conversation_of_another_model_is_refused(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    with pytest.raises(NotFound):
        async with client.converse(model="other"):
            raise AssertionError("it is open")


async def test_conversations_share_their_places_with_websockets() -> None:
    once = antiphon.Retry(attempts=1)
    async with (
        serve_gateway(max_conversations=1) as served,
        antiphon.AsyncClient(served.gateway.grpc_address, retry=once) as client,
    ):
        async with client.converse() as call:
            await said(call, "Hi")
            with pytest.raises(ResourceExhausted) as refused:
                async with client.converse():
                    raise AssertionError("it is open")
            assert refused.value.retry_after_s > 0
            upgrade = {"connection": "upgrade", "upgrade": "websocket"}
            key = {"sec-websocket-key": "MDEyMzQ1Njc4OWFiY2RlZg==", "sec-websocket-version": "13"}
            denied = await served.http.get("/v1/realtime", headers=upgrade | key)
            assert denied.status_code == 429
        patient = antiphon.Retry(attempts=100, pause_s=0.05, longest_pause_s=0.05)
        async with (
            antiphon.AsyncClient(served.gateway.grpc_address, retry=patient) as other,
            other.converse() as call,
        ):
            await said(call, "Hi")


async def test_conversation_ends_when_it_lasts_too_long() -> None:
    async with (
        serve_gateway(max_conversation_s=1.0) as served,
        antiphon.AsyncClient(served.gateway.grpc_address) as client,
        client.converse() as call,
    ):
        with pytest.raises(DeadlineExceeded, match="max_conversation_s"):
            await until(call, antiphon.ResponseDone)
        with pytest.raises(DeadlineExceeded, match="max_conversation_s"):
            await call.add("Hi")


async def test_conversation_ends_when_nothing_comes_first() -> None:
    async with (
        serve_gateway(body_timeout_s=0.5) as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address) as channel,
    ):
        call = speech_stub(channel).Converse()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert isinstance(error_from_rpc(caught.value), DeadlineExceeded)


async def test_conversation_whose_client_takes_nothing_frees_the_stages() -> None:
    async def endless(session: Session) -> None:
        await session.opened()
        while True:
            await session.text("on and on " * 10_000)

    options = [("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)]
    async with (
        serve_gateway(send_timeout_s=0.5, max_conversations=1) as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address, options) as channel,
    ):
        served.fakes[THINKER].script = endless
        call = speech_stub(channel).Converse()
        settings = converse_pb2.ConversationSettings(spoken=False)
        opening = converse_pb2.OpenConversation(settings=settings)
        await call.write(converse_pb2.ConverseRequest(open=opening))
        item = converse_pb2.ConversationItem(
            role="user", contents=[converse_pb2.ItemContent(text="Hi")]
        )
        created = converse_pb2.CreateItem(item=item)
        await call.write(converse_pb2.ConverseRequest(create_item=created))
        await call.write(converse_pb2.ConverseRequest(create_response={}))
        # Nothing is read: the gateway gives it up, and the stage's session ends.
        await served.fakes.wait_begun(THINKER)
        await served.fakes[THINKER].sessions[-1].ended.wait()
        # Its place is free for another, although it is still connected.
        patient = antiphon.Retry(attempts=100, pause_s=0.05, longest_pause_s=0.05)
        async with (
            antiphon.AsyncClient(served.gateway.grpc_address, retry=patient) as other,
            other.converse() as free,
        ):
            await said(free, "Hi")
        call.cancel()


async def test_conversation_whose_client_takes_no_replies_gives_back_what_it_keeps(
    tmp_path: Path,
) -> None:
    """The client stalls the commands themselves, not a response beside them."""
    size = 900_000
    key, keys_file = new_key(), tmp_path / "keys"
    entry = {"name": "app", "sha256": digest_of(key), "conversations": 1}
    keys_file.write_bytes(msgspec.yaml.encode({"keys": [entry]}))
    options = [("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)]
    async with (
        serve_gateway(
            # Longer than a pause between two reads of this process.
            send_timeout_s=2.0,
            max_conversations=1,
            max_memory_bytes=6 * size,
            keys_file=str(keys_file),
        ) as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address, options) as channel,
    ):
        served.fakes[THINKER].script = stall
        call = speech_stub(channel).Converse(metadata=[("authorization", f"Bearer {key}")])
        await call.write(converse_pb2.ConverseRequest(open=converse_pb2.OpenConversation()))
        item = converse_pb2.ConversationItem(
            id="long", role="user", contents=[converse_pb2.ItemContent(text="x" * size)]
        )
        created = converse_pb2.CreateItem(item=item)
        await call.write(converse_pb2.ConverseRequest(create_item=created))
        for _ in ("begun", "added"):
            await call.read()
        await call.write(converse_pb2.ConverseRequest(create_response={}))
        await served.fakes.wait_begun(THINKER)
        assert await served.metric(HELD) > size
        # More than lies on the way to a client that reads nothing.
        await call.write(converse_pb2.ConverseRequest(retrieve_item={"item_id": "long"}))
        patient = antiphon.Retry(attempts=100, pause_s=0.05, longest_pause_s=0.05)
        async with (
            antiphon.AsyncClient(served.gateway.grpc_address, retry=patient, api_key=key) as other,
            other.converse() as free,
        ):
            assert await served.metric(HELD) == 0
            await said(free, "Hi")

        # It is told why, once it listens.
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await read_to_end(call)
        assert isinstance(error_from_rpc(ended.value), DeadlineExceeded)
        await served.fakes[THINKER].sessions[0].ended.wait()


async def test_conversation_is_entered_before_it_is_used(client: antiphon.AsyncClient) -> None:
    call = client.converse()
    with pytest.raises(FailedPrecondition, match="use it as a context manager"):
        await call.add("Hi")
