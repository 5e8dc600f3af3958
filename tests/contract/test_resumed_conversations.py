"""Conversations whose gateway is lost, which go on at another one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import grpc
import pytest

import antiphon
from antiphon.errors import (
    AntiphonError,
    InvalidArgument,
    Unavailable,
)
from antiphon.v1 import converse_pb2
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import speech_stub
from tests.contract.converse_client import asked, said, until
from tests.contract.served_gateway import ServedGateway, serve_gateway
from tests.contract.two_gateways import KEY, LONG_S, OTHER_KEY, two_gateways

pytestmark = pytest.mark.asyncio(loop_scope="session")

RETRY = antiphon.Retry(attempts=8, pause_s=0.01)


async def test_a_conversation_goes_on_at_another_gateway(tmp_path: Path) -> None:
    async with (
        two_gateways(tmp_path) as two,
        antiphon.AsyncClient(two.addresses, retry=RETRY) as client,
        client.converse(spoken=False, instructions="Be brief.") as call,
    ):
        first = await said(call, "Hello")
        await call.respond()
        answer = (await until(call, antiphon.ResponseDone)).response.items[0]
        await two.lose_first()
        opened = await until(call, antiphon.ConversationOpened)
        assert (opened.settings.instructions, opened.settings.spoken) == ("Be brief.", False)
        assert call.opened is opened
        await said(call, "And now?")
        await call.respond()
        done = await until(call, antiphon.ResponseDone)
        assert done.response.status == "completed"
        assert asked(two.second) == [
            ("system", ["Be brief."]),
            ("user", ["Hello"]),
            ("assistant", [answer.text]),
            ("user", ["And now?"]),
        ]
        for item in (first, answer.id):
            await call.fetch(item)
            assert (await until(call, antiphon.ItemFetched)).item.id == item


async def test_an_answer_that_was_being_made_ends_as_far_as_it_was_heard(tmp_path: Path) -> None:
    async with (
        two_gateways(tmp_path) as two,
        antiphon.AsyncClient(two.addresses, retry=RETRY) as client,
        client.converse() as call,
    ):
        await said(call, "Hello")
        await call.respond(metadata={"number": "1"})
        text, pcm16 = "", b""
        lost: asyncio.Task[None] | None = None
        async for event in call:
            match event:
                case antiphon.ResponseTextDelta():
                    text += event.text
                case antiphon.ResponseAudioDelta():
                    pcm16 += event.pcm16
                case antiphon.ResponseItemDone(item=item):
                    said_in_it = item
                case antiphon.ResponseDone(response):
                    break
            if text and pcm16 and lost is None:
                lost = asyncio.create_task(two.lose_first())
        assert lost is not None
        await lost
        assert (response.status, response.metadata) == ("failed", {"number": "1"})
        assert isinstance(response.error, Unavailable)
        assert (said_in_it.text, said_in_it.complete) == (text, False)
        part = said_in_it.parts[0]
        assert isinstance(part, antiphon.SpokenPart)
        assert part.audio_s == len(pcm16) / 2 / call.sample_rate_hz
        await call.respond()
        assert (await until(call, antiphon.ResponseDone)).response.status == "completed"
        assert asked(two.second)[-1] == ("assistant", [text])


async def test_what_was_not_carried_out_is_sent_again(tmp_path: Path) -> None:
    """Audio that is no item yet, and commands that no gateway has answered."""
    async with (
        two_gateways(tmp_path) as two,
        antiphon.AsyncClient(two.addresses, retry=RETRY) as client,
        client.converse(spoken=False) as call,
    ):
        await call.send_audio(b"\1\0" * 2400)
        first = await said(call, "While something is being said")
        await two.lose_first()
        # To a call that is over.
        await call.send_audio(b"\2\0" * 2400)
        await call.commit_audio()
        committed = await until(call, antiphon.ItemCreated)
        assert committed.previous_item_id == first
        await call.fetch(committed.item.id)
        part = (await until(call, antiphon.ItemFetched)).item.parts[0]
        assert isinstance(part, antiphon.RecordedPart)
        assert part.pcm16 == b"\1\0" * 2400 + b"\2\0" * 2400


async def test_the_blocking_client_goes_on_too(tmp_path: Path) -> None:
    """Both clients have the same conversation; here threads block."""

    def converse(addresses: str, opened: threading.Event, lost: threading.Event) -> list[str]:
        with (
            antiphon.Client(addresses, retry=RETRY) as client,
            client.converse(spoken=False) as call,
        ):
            call.add("Hello")
            next(each for each in call if isinstance(each, antiphon.ItemCreated))
            opened.set()
            assert lost.wait(LONG_S)
            call.respond()
            seen = []
            for event in call:
                seen.append(type(event).__name__)
                if isinstance(event, antiphon.ResponseDone):
                    assert event.response.status == "completed"
                    return seen
        raise AssertionError("the conversation has ended")

    opened, lost = threading.Event(), threading.Event()
    async with two_gateways(tmp_path) as two:
        talking = asyncio.create_task(asyncio.to_thread(converse, two.addresses, opened, lost))
        await asyncio.to_thread(opened.wait, LONG_S)
        await two.lose_first()
        lost.set()
        assert "ConversationOpened" in await talking
        assert asked(two.second) == [("user", ["Hello"])]


async def test_a_gateway_with_another_key_goes_on_with_nothing(tmp_path: Path) -> None:
    async with (
        two_gateways(tmp_path, (KEY, OTHER_KEY)) as two,
        antiphon.AsyncClient(two.addresses, retry=RETRY) as client,
        client.converse(spoken=False) as call,
    ):
        await said(call, "Hello")
        await two.lose_first()
        with pytest.raises(Unavailable) as lost:
            await until(call, antiphon.ResponseDone)
        refused = lost.value.__cause__
        assert isinstance(refused, InvalidArgument)
        assert refused.field == "open.resumed.token"
        # Who sends is told, too.
        with pytest.raises(Unavailable):
            await call.respond()


async def tokens_of(
    served: ServedGateway, *commands: converse_pb2.ConverseRequest, resumable: bool = True
) -> list[converse_pb2.ConversationSaved]:
    """What a conversation tells of itself."""
    opening = converse_pb2.OpenConversation(resumable=resumable)
    async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
        talk = speech_stub(channel).Converse()
        for command in (converse_pb2.ConverseRequest(open=opening), *commands):
            await talk.write(command)
        await talk.done_writing()
        return [each.saved async for each in talk if each.HasField("saved")]


async def refusal(served: ServedGateway, token: bytes) -> AntiphonError:
    resumed = converse_pb2.ResumedConversation(token=token)
    opening = converse_pb2.OpenConversation(resumed=resumed)
    async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
        talk = speech_stub(channel).Converse()
        await talk.write(converse_pb2.ConverseRequest(open=opening))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await talk.read()
        return error_from_rpc(refused.value)


async def test_tokens_that_will_not_do_are_refused() -> None:
    async with asyncio.timeout(LONG_S), serve_gateway(resume_bytes=4096) as served:
        assert await tokens_of(served, resumable=False) == []
        token = (await tokens_of(served))[0].token
        changed = token[:-1] + bytes([token[-1] ^ 1])
        for wrong in (b"", b"x", token[:40], changed, bytes(32) + token[32:]):
            error = await refusal(served, wrong)
            assert (type(error), error.field) == (InvalidArgument, "open.resumed.token")
        assert "more than any token can have" in (await refusal(served, bytes(8192))).message


async def test_a_conversation_with_too_much_text_cannot_be_resumed() -> None:
    item = converse_pb2.ConversationItem(
        role="user", contents=[converse_pb2.ItemContent(text="long " * 500)], id="long"
    )
    created = converse_pb2.CreateItem(item=item)
    deleted = converse_pb2.DeleteItem(item_id="long")
    async with asyncio.timeout(LONG_S), serve_gateway(resume_bytes=2048) as served:
        saved = await tokens_of(
            served,
            converse_pb2.ConverseRequest(create_item=created),
            converse_pb2.ConverseRequest(delete_item=deleted),
        )
    told = [(bool(each.token), each.commands) for each in saved]
    assert told == [(True, 0), (False, 1), (True, 2)]
