"""`/v1/realtime` with the audio of telephones, and with models of other rates than its own."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from antiphon.values.conversation import from_tensors
from antiphon.values.segment import FinishReason
from antiphon_gateway.media.live_audio import A_LAW, LIVE_FORMATS, MU_LAW, LiveEncoder, LiveFormat
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    INPUT_RATE_HZ,
    SAMPLE_RATE_HZ,
    THINKER,
    samples_of,
)
from tests.contract.fake_stages import Session as Stage
from tests.contract.realtime_client import Realtime, realtime
from tests.contract.served_gateway import ServedGateway, tell_anew

pytestmark = pytest.mark.asyncio(loop_scope="session")

TELEPHONE = pytest.mark.parametrize("law", [MU_LAW, A_LAW], ids=lambda law: law.name)


def tone(rate_hz: int, seconds: float = 0.5) -> np.ndarray[Any, Any]:
    at = np.arange(round(rate_hz * seconds)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * 330 * at)).astype(np.float32)


def settings(name: str) -> dict[str, Any]:
    form = {"format": {"type": name}}
    audio = {"input": {**form, "turn_detection": None}, "output": form}
    return {"type": "realtime", "audio": audio}


def spoken(client: Realtime) -> bytes:
    deltas = [e["delta"] for e in client.events if e["type"] == "response.output_audio.delta"]
    return b"".join(map(base64.b64decode, deltas))


def expected(wanted: LiveFormat, rate_hz: int) -> bytes:
    """What the usual code2wav says, in one piece."""
    encoder, pieces, start = LiveEncoder(wanted, rate_hz), [], 0
    for frames in FRAMES:
        pieces.append(samples_of(frames, start))
        start += len(pieces[-1])
    return encoder.add(np.concatenate(pieces)) + encoder.finish()


@TELEPHONE
async def test_what_a_telephone_sends_is_heard_and_told_as_it_was(
    served: ServedGateway, law: LiveFormat
) -> None:
    assert law.companding is not None
    said = law.companding.encode(np.rint(tone(8_000) * 32767).astype(np.int16))
    async with realtime(served) as client:
        await client.send("session.update", session=settings(law.name))
        session = (await client.until("session.updated"))["session"]
        assert session["audio"]["input"]["format"] == {"type": law.name}
        assert session["audio"]["output"]["format"] == {"type": law.name}
        for at in range(0, len(said), 333):
            audio = base64.b64encode(said[at : at + 333]).decode()
            await client.send("input_audio_buffer.append", audio=audio)
        await client.send("input_audio_buffer.commit")
        item_id = (await client.until("conversation.item.done"))["item"]["id"]
        part = {"type": "input_audio", "audio": base64.b64encode(said).decode()}
        item = {"type": "message", "role": "user", "content": [part]}
        await client.send("conversation.item.create", item=item)
        await client.until("conversation.item.done")
        await client.send("response.create", response={"output_modalities": ["text"]})
        await client.until("response.done")
        chunk = served.fakes[THINKER].sessions[-1].input
        assert chunk is not None
        for heard in from_tensors(chunk.tensors).recordings:
            wanted = tone(INPUT_RATE_HZ)
            assert abs(len(heard) - len(wanted)) <= 1
            # The steps of the law, and the ends that a resampler rounds.
            assert np.abs(heard[400:7_600] - wanted[400:7_600]).max() < 0.03
        await client.send("conversation.item.retrieve", item_id=item_id)
        told = (await client.until("conversation.item.retrieved"))["item"]
        assert base64.b64decode(told["content"][0]["audio"]) == said


@TELEPHONE
async def test_what_is_said_to_a_telephone_joins_without_a_seam(
    served: ServedGateway, law: LiveFormat
) -> None:
    async with realtime(served) as client:
        await client.send("session.update", session=settings(law.name))
        await client.say("Hi")
        await client.send("response.create")
        done = (await client.until("response.done"))["response"]
    assert done["audio"]["output"]["format"] == {"type": law.name}
    assert spoken(client) == expected(law, SAMPLE_RATE_HZ)


@pytest.fixture
def slower(served: ServedGateway) -> Iterator[int]:
    told = served.gateway.fleet[CODE2WAV].require()
    told.sample_rate_hz = 16_000
    tell_anew(served.gateway)
    yield told.sample_rate_hz
    told.sample_rate_hz = SAMPLE_RATE_HZ
    tell_anew(served.gateway)


@pytest.mark.parametrize("name", LIVE_FORMATS)
async def test_model_of_another_rate_speaks_at_the_rate_of_the_format(
    served: ServedGateway, slower: int, name: str
) -> None:
    async with realtime(served) as client:
        await client.say("Hi")
        audio = {"output": {"format": {"type": name}}}
        await client.send("response.create", response={"audio": audio})
        await client.until("response.done")
    assert spoken(client) == expected(LIVE_FORMATS[name], slower)


async def test_cancelled_telephone_call_ends_without_the_rest(served: ServedGateway) -> None:
    async def begin(stage: Stage) -> None:
        await stage.opened()
        await stage.audio(20, 0)
        number = await stage.cancelled_segment()
        assert number == 0
        await stage.chunk("audio", position=0, finish=FinishReason.CANCELLED)
        await stage.report(FinishReason.CANCELLED)

    async def wait(stage: Stage) -> None:
        await stage.opened()
        await stage.cancelled_segment()
        await stage.report(FinishReason.CANCELLED)

    for role, stage in served.fakes.by_role.items():
        stage.script = begin if role == CODE2WAV else wait
    async with realtime(served) as client:
        await client.send("session.update", session=settings(MU_LAW.name))
        await client.say("Hi")
        await client.send("response.create")
        await client.until("response.output_audio.delta")
        await client.send("response.cancel")
        start = len(client.events)
        done = (await client.until("response.done"))["response"]
        assert done["status"] == "cancelled"
        told = [event["type"] for event in client.events[start:]]
        assert "response.output_audio.delta" not in told


@pytest.mark.parametrize(
    "form",
    [
        {"type": "audio/opus"},
        {"type": "audio/pcmu", "rate": 16_000},
        {"type": "audio/pcm", "rate": 8_000},
    ],
)
@pytest.mark.parametrize("way", ["input", "output"])
async def test_format_that_is_not_served_is_refused_by_its_name(
    served: ServedGateway, form: dict[str, Any], way: str
) -> None:
    async with realtime(served) as client:
        audio = {way: {"format": form}}
        await client.send("session.update", session={"type": "realtime", "audio": audio})
        error = (await client.until("error"))["error"]
        assert error["param"] == f"session.audio.{way}.format"
        assert "audio/pcma of 8000 Hz" in error["message"]


async def test_format_changes_only_between_recordings(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.send("session.update", session=settings("audio/pcm"))
        await client.send("input_audio_buffer.append", audio=base64.b64encode(bytes(480)).decode())
        await client.send("session.update", session=settings(MU_LAW.name))
        await client.until("session.updated")
        await client.until("session.updated")
        await client.send("input_audio_buffer.append", audio=base64.b64encode(bytes(8)).decode())
        assert (await client.until("error"))["error"]["param"] == "audio"
        await client.send("input_audio_buffer.clear")
        await client.send("input_audio_buffer.append", audio=base64.b64encode(bytes(7)).decode())
        await client.send("input_audio_buffer.commit")
        await client.until("input_audio_buffer.committed")
