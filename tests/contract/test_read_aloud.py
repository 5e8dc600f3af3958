"""`/v1/audio/speech`, asked by OpenAI's client: models that read aloud, and one that answers."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest
import pytest_asyncio
import soundfile

from antiphon.v1 import stage_pb2
from antiphon.values.conversation import from_tensors
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import FakeStages
from tests.contract.reading_model import (
    PCM16,
    RATE_HZ,
    SPEAKER,
    VOCODER,
    Reader,
    break_off,
    post,
    read,
)
from tests.contract.served_gateway import MESSAGES, deployment_of, tell_anew

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def api(reader: Reader) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://{reader[1].http_address}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def samples_in(wav: bytes) -> tuple[npt.NDArray[np.int16], int]:
    samples, rate_hz = soundfile.read(io.BytesIO(wav), dtype="int16")
    return samples, rate_hz


async def test_speech_is_samples_when_pcm_is_asked_for(
    reader: Reader, api: openai.AsyncOpenAI
) -> None:
    fakes, _ = reader
    said = await api.audio.speech.create(
        model="reader", input="Read this.", voice="bass", response_format="pcm"
    )
    assert said.read() == PCM16
    assert said.response.headers["content-type"] == "audio/pcm"
    session = fakes[SPEAKER].sessions[-1]
    assert session.segment.voice == "bass"
    assert session.input is not None
    (message,) = from_tensors(session.input.tensors).messages
    assert (message.role, [part.text for part in message.parts]) == ("user", ["Read this."])


async def test_speech_is_a_wav_file_that_readers_take(api: openai.AsyncOpenAI) -> None:
    said = await api.audio.speech.create(
        model="reader", input="Read this.", voice="alto", response_format="wav"
    )
    samples, rate_hz = samples_in(said.read())
    assert rate_hz == RATE_HZ
    assert samples.astype("<i2").tobytes() == PCM16


async def test_speech_comes_as_it_is_made(reader: Reader, api: openai.AsyncOpenAI) -> None:
    async with api.audio.speech.with_streaming_response.create(
        model="reader", input="Read this.", voice="alto", response_format="pcm"
    ) as said:
        assert "content-length" not in said.headers
        assert b"".join([piece async for piece in said.iter_bytes()]) == PCM16


@pytest.mark.parametrize("audio_format", ["pcm", "wav"])
async def test_speech_comes_as_events_when_asked_for(reader: Reader, audio_format: str) -> None:
    response = await post(
        reader, input="Read.", stream_format="sse", response_format=audio_format, seed=3
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.strip().split("\n\n")
    *deltas, done = (json.loads(line.removeprefix("data: ")) for line in lines)
    assert {each["type"] for each in deltas} == {"speech.audio.delta"}
    audio = base64.b64decode("".join(each["audio"] for each in deltas))
    if audio_format == "wav":
        assert samples_in(audio)[0].astype("<i2").tobytes() == PCM16
    else:
        assert audio == PCM16
    # 1001 samples are of 13 frames, as far as the gateway can tell.
    usage = {"input_tokens": 5, "output_tokens": 13, "total_tokens": 18}
    assert done == {"type": "speech.audio.done", "usage": usage}
    assert reader[0][SPEAKER].sessions[-1].segment.sampling[SPEAKER].seed == 3


async def test_speech_that_breaks_off_is_no_complete_response(reader: Reader) -> None:
    fakes, _ = reader
    fakes[VOCODER].script = break_off
    try:
        with pytest.raises(httpx.RemoteProtocolError):
            await post(reader, input="Read.", response_format="pcm")
        response = await post(reader, input="Read.", stream_format="sse")
        assert "enough" in response.text.rstrip().splitlines()[-1]
        assert "speech.audio.done" not in response.text
    finally:
        fakes[VOCODER].script = read


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": " \n"}, "input"),
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": "a", "voice": "tenor"}, "voice"),
        ({"input": "a", "response_format": "pcm16"}, "response_format"),
        ({"input": "a", "response_format": "tape"}, "response_format"),
        ({"input": "a", "stream_format": "morse"}, "stream_format"),
        ({"input": "a", "speed": 0.2}, "speed"),
        ({"input": "a", "speed": 4.1}, "speed"),
        ({"input": "a", "temperature": -1}, "temperature"),
        ({"input": "a", SPEAKER: {"top_k": 1}}, SPEAKER),
        ({"input": "a", VOCODER: {"top_k": 1}}, VOCODER),
        ({"input": "a", "model": ""}, "model"),
        ({"input": "a", "chunk_policy": {"first": 0, "ramp": [], "steady": 1}}, "chunk_policy"),
    ],
)
async def test_speech_refuses_a_wrong_field_by_its_name(
    reader: Reader, fields: dict[str, object], param: str
) -> None:
    response = await post(reader, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)


async def test_text_that_is_too_long_is_refused_by_the_name_of_its_field(reader: Reader) -> None:
    _, gateway = reader
    told = gateway.fleet[SPEAKER].require()
    before, told.max_input_text_bytes = told.max_input_text_bytes, 20
    tell_anew(gateway)
    try:
        response = await post(reader, input="x" * 21)
    finally:
        told.max_input_text_bytes = before
        tell_anew(gateway)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "input"
    assert error["message"].startswith("input: with this text, the request has 21 bytes")


async def test_speech_options_reach_their_stages_and_instructions_are_one(reader: Reader) -> None:
    fakes, gateway = reader
    given = {"input": "Read.", "options": {"pitch": 2}, "instructions": "Whisper."}
    response = await post(reader, input="Read.", options={"pitch": 2})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "options.pitch")
    response = await post(reader, input="Read.", instructions="Whisper.")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "instructions")
    assert error["message"].startswith("instructions: this model can't be instructed")
    told = gateway.fleet[SPEAKER].require()
    told.options.add(name="pitch", kind=stage_pb2.OPTION_KIND_NUMBER, most=3)
    text = stage_pb2.OPTION_KIND_TEXT
    told.options.add(name="instruction", kind=text, max_bytes=99)
    told.options.add(name="manner", kind=text, max_bytes=9, instructs=True)
    tell_anew(gateway)
    try:
        response = await post(reader, **given)
        assert response.status_code == 200, response.text
        for wrong in (
            {"input": "Read.", "instructions": "Whisper it."},
            {**given, "options": {"manner": "Shout."}},
        ):
            error = (await post(reader, **wrong)).json()["error"]
            assert error["param"] == "instructions"
            assert error["message"].startswith("instructions: ")
    finally:
        told.ClearField("options")
        tell_anew(gateway)
    got = fakes[SPEAKER].sessions[-1].segment.options
    assert got.keys() == {"pitch", "manner"}
    assert (got["pitch"].number, got["manner"].text) == (2, "Whisper.")


async def test_speech_takes_sampling_of_a_further_stage_that_samples(reader: Reader) -> None:
    fakes, gateway = reader
    told = gateway.fleet[VOCODER].require()
    told.samples = True
    tell_anew(gateway)
    try:
        given = await post(reader, input="Read.", top_k=5, vocoder={"top_k": 3})
        wrong = await post(reader, input="Read.", vocoder={"top_k": -2})
    finally:
        told.samples = False
        tell_anew(gateway)
    assert given.status_code == 200, given.text
    sampling = fakes[VOCODER].sessions[-1].segment.sampling
    assert (sampling[SPEAKER].top_k, sampling[VOCODER].top_k) == (5, 3)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "vocoder.top_k")


async def test_speech_is_refused_by_a_model_that_answers() -> None:
    async with (
        FakeStages() as fakes,
        Gateway(deployment_of(fakes)) as gateway,
    ):
        await gateway.wait_ready()
        response = await post((fakes, gateway), model=gateway.fleet.model_name(), input="Hi")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "model"
        assert "/v1/chat/completions" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}, *MESSAGES],
        [*MESSAGES, {"role": "assistant", "content": "Yes?"}, *MESSAGES],
        [{"role": "assistant", "content": "Yes?"}],
    ],
)
async def test_chat_with_a_model_that_reads_aloud_takes_one_user_message(
    reader: Reader, messages: list[dict[str, str]]
) -> None:
    audio = {"modalities": ["audio"], "audio": {"voice": "alto", "format": "pcm16"}}
    path = "/v1/chat/completions"
    assert (await post(reader, path, messages=MESSAGES, **audio)).status_code == 200
    response = await post(reader, path, messages=messages, **audio)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"
