"""Realtime conversations whose gateway is lost, which go on at another one."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.contract.converse_client import asked
from tests.contract.served_gateway import MODEL, ServedGateway, serve_gateway
from tests.contract.two_gateways import LONG_S, two_gateways

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAVED = "antiphon.conversation.saved"
RESUME = "antiphon.conversation.resume"
Told = dict[str, Any]


class Line:
    """A connection, with the latest token that came on it and the commands that were sent."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket
        self.saved: Told = {}
        self.sent: list[Told] = []

    async def send(self, kind: str, **fields: Any) -> None:
        self.sent.append({"type": kind, **fields})
        await self.again(self.sent[-1])

    async def again(self, command: Told) -> None:
        await self._socket.send(json.dumps(command))

    async def next(self) -> Told:
        event: Told = json.loads(await self._socket.recv())
        if event["type"] == SAVED:
            self.saved = event
        return event

    async def until(self, kind: str) -> Told:
        while (event := await self.next())["type"] != kind:
            assert event["type"] != "error", event
        return event

    async def say(self, text: str) -> None:
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send("conversation.item.create", item=item)
        await self.until("conversation.item.done")

    async def until_saved(self) -> Told:
        """The token that has all that was sent."""
        while self.saved.get("commands") != len(self.sent):
            await self.next()
        return self.saved


@asynccontextmanager
async def line(served: ServedGateway, **flags: str) -> AsyncIterator[Line]:
    query = "&".join(f"{name}={value}" for name, value in flags.items())
    address = served.url.replace("http", "ws", 1)
    url = f"{address}/v1/realtime?model={MODEL}&{query}"
    async with websockets.connect(url, max_size=None) as socket:
        yield Line(socket)


@asynccontextmanager
async def resumed(served: ServedGateway, saved: Told, *delivered: Told) -> AsyncIterator[Line]:
    async with line(served, resumable="true", resumed="true") as other:
        await other.again({"type": RESUME, "token": saved["token"], "delivered": delivered})
        yield other


async def settle(one: Line, **session: Any) -> None:
    audio = {"input": {"turn_detection": None, "format": {"type": "audio/pcmu"}}}
    await one.send("session.update", session={"type": "realtime", "audio": audio, **session})
    await one.until("session.updated")


async def test_a_conversation_goes_on_at_another_gateway(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as two:
        async with line(two.first, resumable="true") as one:
            await settle(one, instructions="Be brief.", output_modalities=["text"])
            await one.say("Hello")
            await one.send("response.create")
            answer = (await one.until("response.done"))["response"]["output"][0]
            # Behind the answer's end.
            saved = await one.until(SAVED)
            await two.lose_first()
        async with resumed(two.second, saved) as other:
            session = (await other.until("session.created"))["session"]
            told = session["instructions"], session["output_modalities"]
            assert told == ("Be brief.", ["text"])
            assert session["audio"]["input"]["format"] == {"type": "audio/pcmu"}
            await other.say("And now?")
            await other.send("response.create")
            done = (await other.until("response.done"))["response"]
            assert done["status"] == "completed"
            assert asked(two.second) == [
                ("system", ["Be brief."]),
                ("user", ["Hello"]),
                ("assistant", [answer["content"][0]["text"]]),
                ("user", ["And now?"]),
            ]
            assert (await other.until_saved())["token"] != saved["token"]


async def test_an_answer_that_was_being_made_ends_as_far_as_it_was_heard(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as two:
        async with line(two.first, resumable="true") as one:
            await settle(one)
            await one.say("Hello")
            await one.send("response.create")
            item = (await one.until("response.output_item.added"))["item"]["id"]
            await one.until("response.output_audio.delta")
            saved = await one.until_saved()
            await two.lose_first()
        heard = {"item_id": item, "text": "Hello, you there", "audio_ms": 2000}
        async with resumed(two.second, saved, heard) as other:
            await other.until("session.created")
            ended = (await other.until("response.output_item.done"))["item"]
            assert (ended["id"], ended["status"]) == (item, "incomplete")
            assert ended["content"][0]["transcript"] == "Hello, you there"
            assert (await other.until("response.done"))["response"]["status"] == "failed"
            half = {"content_index": 0, "audio_end_ms": 1000}
            await other.send("conversation.item.truncate", item_id=item, **half)
            await other.until("conversation.item.truncated")
            await other.send("response.create")
            assert (await other.until("response.done"))["response"]["status"] == "completed"
            assert asked(two.second)[-1] == ("assistant", ["Hello,"])


async def test_audio_that_is_no_item_yet_is_to_be_sent_again(tmp_path: Path) -> None:
    """It is in no token: its commands are behind `audio_commands`."""
    pieces = [base64.b64encode(bytes([number, 0]) * 2400).decode() for number in (1, 2)]
    async with two_gateways(tmp_path) as two:
        async with line(two.first, resumable="true") as one:
            await settle(one)
            await one.send("input_audio_buffer.append", audio=pieces[0])
            await one.send("input_audio_buffer.commit")
            await one.send("input_audio_buffer.append", audio=pieces[1])
            await one.say("While something is being said")
            saved = await one.until_saved()
            await two.lose_first()
        assert (saved["commands"], saved["audio_commands"]) == (5, 3)
        async with resumed(two.second, saved) as other:
            await other.until("session.created")
            for command in one.sent[saved["audio_commands"] : saved["commands"]]:
                if command["type"] == "input_audio_buffer.append":
                    await other.again(command)
            await other.send("input_audio_buffer.commit")
            item = (await other.until("input_audio_buffer.committed"))["item_id"]
            await other.send("conversation.item.retrieve", item_id=item)
            whole = (await other.until("conversation.item.retrieved"))["item"]
            assert whole["content"][0]["audio"] == pieces[1]


async def test_no_token_is_told_to_who_did_not_ask() -> None:
    async with asyncio.timeout(LONG_S), serve_gateway() as served, line(served) as one:
        await settle(one)
        await one.say("Hello")
        await one.send("conversation.item.retrieve", item_id="none")
        while (await one.next())["type"] != "error":
            pass
        assert not one.saved


@pytest.mark.parametrize(
    ("first", "field", "words"),
    [
        ({"type": RESUME, "token": "AAAA"}, "token", "not issued to this client"),
        ({"type": RESUME, "token": "?"}, "token", "is not valid base64"),
        ({"type": RESUME}, "token", "token"),
        ({"type": "response.create"}, "type", RESUME),
        ({"type": RESUME, "token": "", "delivered": [{"item_id": "i"}] * 65}, "delivered", "64"),
    ],
)
async def test_what_cannot_be_resumed_is_refused_by_name(
    first: Told, field: str, words: str
) -> None:
    async with (
        asyncio.timeout(LONG_S),
        serve_gateway() as served,
        line(served, resumed="true") as one,
    ):
        await one.again(first)
        error = (await one.next())["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == field
        assert words in error["message"]
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await one.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


async def test_who_says_nothing_is_not_waited_for() -> None:
    async with (
        asyncio.timeout(LONG_S),
        serve_gateway(body_timeout_s=0.2) as served,
        line(served, resumed="true") as one,
    ):
        assert "0.2 s" in (await one.next())["error"]["message"]
        with pytest.raises(websockets.ConnectionClosed):
            await one.next()


@pytest.mark.parametrize("name", ["resumable", "resumed"])
async def test_a_flag_is_true_or_false(name: str) -> None:
    async with asyncio.timeout(LONG_S), serve_gateway() as served:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with line(served, **{name: "yes"}):
                pass
        assert refused.value.response.status_code == 400
        assert name in refused.value.response.body.decode()


async def test_transcription_session_is_refused_in_the_handshake() -> None:
    async with asyncio.timeout(LONG_S), serve_gateway() as served:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with line(served, intent="transcription"):
                pass
        assert refused.value.response.status_code == 400
        assert "/v1/audio/transcriptions" in refused.value.response.body.decode()
