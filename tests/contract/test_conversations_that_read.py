"""Conversations with a model that reads aloud: it speaks the user's texts, over both protocols."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest
import pytest_asyncio
import soxr

import antiphon
from antiphon.errors import Internal
from antiphon.values.conversation import TextPart, from_tensors
from antiphon.values.segment import FinishReason
from antiphon_gateway.server import Gateway
from tests.contract.converse_client import said, until, until_failed
from tests.contract.fake_stages import FakeStages, Session, twice
from tests.contract.reading_model import (
    PIECES,
    RATE_HZ,
    SAMPLES,
    SPEAKER,
    VOCODER,
    Reader,
    open_reader,
    read,
)
from tests.contract.realtime_client import Realtime, Told
from tests.contract.served_gateway import deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "reader"
STYLE = "style"
FRAMES = 13
"""Of 80 samples, the last of them not whole."""
CD_HZ = 44_100
"""The rate of Ming's audio."""
REALTIME_HZ = 24_000
SILENCE = base64.b64encode(bytes(4800)).decode()
TAKES_NO_AUDIO = "doesn't accept audio; send a user item with text"


async def read_twice(session: Session) -> None:
    await twice(read)(session)


async def begin(session: Session) -> None:
    """Speak a little, be cancelled, and read the next text."""
    await session.opened()
    if session.role == VOCODER:
        await session.chunk("audio", {"samples": PIECES[2]}, position=0)
    assert await session.cancelled_segment() == 0
    await session.report(FinishReason.CANCELLED, input_positions=5, output_positions=1)
    await session.next_segment()
    await read(session)


def described(stages: FakeStages) -> None:
    """The model takes a description of the speech."""
    option = stages[SPEAKER].description.options.add(name=STYLE, kind=1, max_bytes=100)
    option.instructs = True


def at_cd_rate(stages: FakeStages) -> None:
    stages[VOCODER].description.sample_rate_hz = CD_HZ


@pytest_asyncio.fixture(loop_scope="session", params=["plain", "described"])
async def reading(request: pytest.FixtureRequest) -> AsyncIterator[Reader]:
    """A model that reads aloud, with and without an option that describes the speech."""

    def prepare(stages: FakeStages) -> None:
        play(stages, read_twice)
        if request.param == "described":
            described(stages)

    async with open_reader(prepare) as opened:
        yield opened


def play(stages: FakeStages, script: Any) -> None:
    for role in (SPEAKER, VOCODER):
        stages[role].script = script


def spoken_last(stages: FakeStages) -> str:
    """The text that the stages got last, as one message of the user."""
    chunk = stages[SPEAKER].sessions[-1].input
    assert chunk is not None
    (message,) = from_tensors(chunk.tensors).messages
    assert message.role == "user"
    (part,) = message.parts
    assert isinstance(part, TextPart)
    return part.text


@asynccontextmanager
async def connected(gateway: Gateway) -> AsyncIterator[Realtime]:
    url = f"http://{gateway.http_address}/v1"
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as api,
        api.realtime.connect(model=MODEL) as connection,
    ):
        client = Realtime(connection)
        await client.until("session.created")
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def call(reading: Reader) -> AsyncIterator[Realtime]:
    async with connected(reading[1]) as client:
        yield client


async def answered(client: Realtime, **response: Any) -> Told:
    """The response to what has been said, completed."""
    fields = {"response": response} if response else {}
    await client.send("response.create", **fields)
    done: Told = (await client.until("response.done"))["response"]
    assert done["status"] == "completed", done
    return done


def transcript(client: Realtime, response: Told) -> str:
    """The transcript of a response, whose deltas are the whole of it and which has audio."""
    (item,) = response["output"]
    (content,) = item["content"]
    told = [e for e in client.events if e.get("item_id") == item["id"]]
    deltas = [e["delta"] for e in told if e["type"] == "response.output_audio_transcript.delta"]
    assert "".join(deltas) == content["transcript"]
    assert len(audio_of(client, response))
    return str(content["transcript"])


def audio_of(client: Realtime, response: Told) -> npt.NDArray[np.int16]:
    (item,) = response["output"]
    deltas = [
        base64.b64decode(e["delta"])
        for e in client.events
        if e["type"] == "response.output_audio.delta" and e["item_id"] == item["id"]
    ]
    return np.frombuffer(b"".join(deltas), "<i2")


async def test_texts_since_the_last_response_are_spoken_and_are_its_transcript(
    reading: Reader, call: Realtime
) -> None:
    await call.say("Read this.")
    await call.say("And this.")
    first = await answered(call)
    assert transcript(call, first) == "Read this.\nAnd this."
    assert spoken_last(reading[0]) == "Read this.\nAnd this."
    await call.say("Now this.")
    assert transcript(call, await answered(call)) == "Now this."
    assert spoken_last(reading[0]) == "Now this."


async def test_usage_counts_the_text_and_the_frames(reading: Reader, call: Realtime) -> None:
    await call.say("Read this.")
    usage = (await answered(call))["usage"]
    assert usage["input_tokens"] == usage["input_token_details"]["text_tokens"] == 5
    assert usage["output_token_details"] == {"text_tokens": 0, "audio_tokens": FRAMES}


async def test_a_response_without_new_text_is_refused_with_the_remedy(call: Realtime) -> None:
    for _ in range(2):
        await call.send("response.create")
        error = (await call.until("error"))["error"]
        assert error["param"] == "response"
        assert "create an item with text first" in error["message"]
        await call.say("Read this.")
        await answered(call)


async def test_a_text_that_failed_is_spoken_when_the_response_names_its_item(
    reading: Reader, call: Realtime
) -> None:
    async def fail(session: Session) -> None:
        await session.opened()
        await session.error(Internal("enough"))

    play(reading[0], fail)
    await call.say("Read this.")
    item = next(e["item"] for e in call.events if e["type"] == "conversation.item.done")
    await call.send("response.create")
    done = (await call.until("response.done"))["response"]
    assert done["status"] == "failed"
    play(reading[0], read_twice)
    named = [{"type": "item_reference", "id": item["id"]}]
    assert transcript(call, await answered(call, input=named)) == "Read this."


async def test_audio_is_refused_by_its_field_with_the_remedy(call: Realtime) -> None:
    audio = [{"type": "input_text", "text": "Hm."}, {"type": "input_audio", "audio": SILENCE}]
    item = {"type": "message", "role": "user", "content": audio}
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("input_audio_buffer.append", {"audio": SILENCE}, "audio"),
        ("conversation.item.create", {"item": item}, "item.content[1].audio"),
        ("response.create", {"response": {"input": [item]}}, "item.content[1].audio"),
    ]
    for kind, fields, param in refused:
        await call.send(kind, **fields)
        error = (await call.until("error"))["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert TAKES_NO_AUDIO in error["message"]
    await call.say("Read this.")
    assert transcript(call, await answered(call)) == "Read this."


async def test_settings_that_the_model_cannot_have_are_told_as_they_hold(
    reading: Reader, call: Realtime
) -> None:
    created = call.events[0]["session"]
    assert created["audio"]["input"]["turn_detection"] is None
    assert created["output_modalities"] == ["audio"]
    asked = {
        "type": "realtime",
        "output_modalities": ["text"],
        "instructions": "Slowly.",
        "audio": {
            "input": {
                "turn_detection": {"type": "server_vad"},
                "transcription": {"model": "any"},
            }
        },
    }
    await call.send("session.update", session=asked)
    held = (await call.until("session.updated"))["session"]
    assert held["output_modalities"] == ["audio"]
    assert held["audio"]["input"]["turn_detection"] is None
    assert held["audio"]["input"]["transcription"] is None
    has_style = bool(reading[0][SPEAKER].description.options)
    assert held["instructions"] == ("Slowly." if has_style else "")
    await call.say("Read this.")
    assert transcript(call, await answered(call)) == "Read this."
    assert style_of(reading[0]) == ("Slowly." if has_style else None)
    await call.say("Read that.")
    await answered(call, instructions="Fast.", output_modalities=["text"])
    assert style_of(reading[0]) == ("Fast." if has_style else None)


def style_of(stages: FakeStages) -> str | None:
    options = stages[SPEAKER].sessions[-1].segment.options
    return options[STYLE].text if STYLE in options else None


async def test_options_of_the_session_are_those_of_the_text(reading: Reader) -> None:
    if not reading[0][SPEAKER].description.options:
        pytest.skip("the model has no option")
    async with connected(reading[1]) as call:
        session = {"type": "realtime", "antiphon": {"options": {STYLE: "Slowly."}}}
        await call.send("session.update", session=session)
        # It is checked as that, and antiphon's fields are not in OpenAI's types.
        while (await call.next_of_any_kind())["type"] != "session.updated":
            pass
        await call.say("Read this.")
        await answered(call)
        assert style_of(reading[0]) == "Slowly."


async def test_the_voice_is_the_models_until_one_is_named(reading: Reader, call: Realtime) -> None:
    assert call.events[0]["session"]["audio"]["output"]["voice"] == ""
    await call.say("Read this.")
    await answered(call)
    assert reading[0][SPEAKER].sessions[-1].segment.voice == ""
    for name, held in (("bass", "bass"), ("nobody", "bass")):
        audio = {"output": {"voice": name}}
        await call.send("session.update", session={"type": "realtime", "audio": audio})
        session = (await call.until("session.updated"))["session"]
        assert session["audio"]["output"]["voice"] == held
    await call.say("And this.")
    await answered(call)
    assert reading[0][SPEAKER].sessions[-1].segment.voice == "bass"


async def test_turns_by_the_clock_are_refused_by_their_field(reading: Reader) -> None:
    async with connected(reading[1]) as call:
        asked = {"type": "realtime", "antiphon": {"answer_every_s": 2.0}}
        await call.send("session.update", session=asked)
        error = (await call.until("error"))["error"]
        assert error["param"] == "session.antiphon.answer_every_s"
        assert TAKES_NO_AUDIO in error["message"]


async def test_an_interrupted_text_is_cut_to_what_was_heard_and_not_spoken_again() -> None:
    async with (
        open_reader(lambda stages: play(stages, begin)) as (stages, gateway),
        connected(gateway) as call,
    ):
        await call.say("Once upon a time there was a small voice")
        await call.send("response.create")
        delta = await call.until_begun()
        await call.send("response.cancel")
        await call.send(
            "conversation.item.truncate",
            item_id=delta["item_id"],
            content_index=0,
            audio_end_ms=100,
        )
        done = (await call.until("response.done"))["response"]
        assert (done["status"], done["status_details"]["reason"]) == (
            "cancelled",
            "client_cancelled",
        )
        await call.send("conversation.item.retrieve", item_id=delta["item_id"])
        (content,) = (await call.until("conversation.item.retrieved"))["item"]["content"]
        # 0.1 s are two characters at most.
        assert content["transcript"] == ""
        await call.say("Stop.")
        assert transcript(call, await answered(call)) == "Stop."
        assert spoken_last(stages) == "Stop."


async def test_44100_hz_are_resampled_for_realtime_clients_without_a_seam() -> None:
    def prepare(stages: FakeStages) -> None:
        play(stages, read_twice)
        at_cd_rate(stages)

    async with open_reader(prepare) as (_, gateway), connected(gateway) as call:
        await call.say("Read this.")
        heard = audio_of(call, await answered(call))
        whole = soxr.resample(SAMPLES, CD_HZ, REALTIME_HZ)
        assert len(heard) == round(len(SAMPLES) * REALTIME_HZ / CD_HZ)
        np.testing.assert_allclose(heard / 32767, whole, rtol=0, atol=2e-4)


@pytest.mark.parametrize("rate_hz", [RATE_HZ, CD_HZ])
async def test_a_conversation_over_grpc_speaks_at_the_models_rate(rate_hz: int) -> None:
    def prepare(stages: FakeStages) -> None:
        play(stages, read_twice)
        described(stages)
        stages[VOCODER].description.sample_rate_hz = rate_hz

    async with (
        open_reader(prepare) as (stages, gateway),
        antiphon.AsyncClient(gateway.grpc_address) as client,
        client.converse(voice="bass", spoken=False, instructions="Slowly.") as call,
    ):
        assert call.sample_rate_hz == rate_hz
        assert call.opened.settings.spoken
        assert call.opened.settings.turns is None
        await said(call, "Read this.")
        await call.respond()
        samples = 0
        async for event in call:
            if isinstance(event, antiphon.ResponseAudioDelta):
                samples += len(event.pcm16) // 2
            if isinstance(event, antiphon.ResponseDone):
                assert event.response.items[0].text == "Read this."
                assert event.response.usage.completion_audio_frames == FRAMES
                break
        assert samples == len(SAMPLES)
        assert stages[SPEAKER].sessions[-1].segment.voice == "bass"
        assert style_of(stages) == "Slowly."
        assert spoken_last(stages) == "Read this."
        await said(call, "Now this.")
        await call.respond()
        assert (await until(call, antiphon.ResponseTextDelta)).text == "Now this."


async def test_a_conversation_over_grpc_refuses_audio_and_a_response_without_text(
    reading: Reader,
) -> None:
    async with (
        antiphon.AsyncClient(reading[1].grpc_address) as client,
        client.converse() as call,
    ):
        await call.respond()
        failed = await until_failed(call)
        assert "create an item with text first" in str(failed.error)
        await call.send_audio(bytes(4800), REALTIME_HZ)
        failed = await until_failed(call)
        assert failed.error.field == "append_audio.pcm16"
        assert TAKES_NO_AUDIO in str(failed.error)
        await said(call, "Read this.")
        await call.respond()
        assert (await until(call, antiphon.ResponseDone)).response.status == "completed"


async def test_a_conversation_goes_on_at_another_gateway(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4)

    def prepare(stages: FakeStages) -> None:
        play(stages, read_twice)
        described(stages)

    async with (
        open_reader(prepare, resume_key_file=str(key)) as (stages, second),
        AsyncExitStack() as leaving,
    ):
        first = await leaving.enter_async_context(
            Gateway(deployment_of(stages, resume_key_file=str(key), drain_s=0.01))
        )
        await first.wait_ready()
        addresses = f"ipv4:{first.grpc_address},{second.grpc_address}"
        retry = antiphon.Retry(attempts=8, pause_s=0.01)
        async with (
            antiphon.AsyncClient(addresses, retry=retry) as client,
            client.converse(instructions="Slowly.") as call,
        ):
            await said(call, "Read this.")
            await call.respond()
            await until(call, antiphon.ResponseDone)
            await said(call, "And this.")
            await leaving.aclose()
            opened = await until(call, antiphon.ConversationOpened)
            assert opened.settings.spoken
            assert opened.settings.instructions == "Slowly."
            await call.respond()
            done = await until(call, antiphon.ResponseDone)
            assert done.response.items[0].text == "And this."
            assert spoken_last(stages) == "And this."
            assert style_of(stages) == "Slowly."
