"""`/v1/audio/transcriptions`, asked by OpenAI's client and by bare forms."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
import soundfile
from openai.types.audio import Transcription, TranscriptionVerbose

from antiphon.errors import Internal
from antiphon.v1 import stage_pb2
from antiphon.values.conversation import AudioPart, Conversation, TextPart, from_tensors
from tests.contract.fake_stages import INPUT_RATE_HZ, TEXTS, THINKER, Session
from tests.contract.raw_http import raw_client
from tests.contract.reading_model import Reader
from tests.contract.served_gateway import MODEL, ServedGateway, serve_gateway, tell_anew

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH = "/v1/audio/transcriptions"
SAID = "".join(TEXTS)
SECONDS = 0.25
RECORDING = np.sin(np.arange(round(SECONDS * INPUT_RATE_HZ)) / 9).astype(np.float32)
FORMATS = {"wav": "FLOAT", "flac": "PCM_24", "mp3": "MPEG_LAYER_III", "ogg": "VORBIS"}
BOUNDARY = "outline"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bounded() -> AsyncIterator[ServedGateway]:
    """One that takes little."""
    settings = {"max_form_parts": 6, "max_form_field_bytes": 100, "max_body_bytes": 1 << 19}
    async with serve_gateway(body_timeout_s=3.0, **settings) as served:
        yield served


def file(container: str = "wav") -> tuple[str, bytes]:
    data = io.BytesIO()
    soundfile.write(data, RECORDING, INPUT_RATE_HZ, FORMATS[container], format=container)
    return f"said.{container}", data.getvalue()


def heard(served: ServedGateway) -> Conversation:
    """The conversation that came to the thinker."""
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    return from_tensors(chunk.tensors)


async def post(served: ServedGateway, **fields: Any) -> Any:
    form: dict[str, Any] = {"model": MODEL, **fields}
    files = {"file": form.pop("file", file())}
    return await served.http.post(PATH, data=form, files=files)


def form(*parts: tuple[str, bytes], end: bytes = b"--") -> bytes:
    """A form by hand: the heads of its parts and what is in them."""
    bare = b"".join(
        f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode() + data + b"\r\n" for head, data in parts
    )
    return bare + f"--{BOUNDARY}".encode() + end + b"\r\n"


def named(name: str) -> str:
    return f'Content-Disposition: form-data; name="{name}"'


async def send(served: ServedGateway, body: bytes, content_type: str = "") -> Any:
    kind = content_type or f"multipart/form-data; boundary={BOUNDARY}"
    return await served.http.post(PATH, content=body, headers={"content-type": kind})


@pytest.mark.parametrize("container", FORMATS)
async def test_transcription_is_what_the_model_says_of_the_recording(
    served: ServedGateway, container: str
) -> None:
    said = await served.openai.audio.transcriptions.create(model=MODEL, file=file(container))
    Transcription.model_validate(said.model_dump(), strict=True)
    assert said.text == SAID
    assert said.usage is not None
    assert said.usage.type == "tokens"
    assert (said.usage.input_tokens, said.usage.output_tokens) == (20, 5)
    assert said.usage.input_token_details is not None
    assert said.usage.input_token_details.audio_tokens == 7
    (message,) = heard(served).messages
    assert message.role == "user"
    assert message.parts == (AudioPart(0), TextPart("Transcribe the audio into text."))
    (recording,) = heard(served).recordings
    if container in ("wav", "flac"):
        assert np.abs(recording - RECORDING).max() < 1e-6
    assert list(served.fakes[THINKER].sessions[-1].segment.outputs) == ["text"]


async def test_transcription_tells_the_model_what_the_client_knows(served: ServedGateway) -> None:
    await served.openai.audio.transcriptions.create(
        model=MODEL, file=file(), language="en", prompt="Bells: tenor, treble.", temperature=0.25
    )
    (message,) = heard(served).messages
    assert isinstance(message.parts[1], TextPart)
    assert message.parts[1].text.splitlines() == [
        "Transcribe the audio into text.",
        "The language is en.",
        "What is known of it: Bells: tenor, treble.",
    ]
    assert served.fakes[THINKER].sessions[-1].segment.sampling[THINKER].temperature == 0.25


async def test_transcription_asks_with_the_deployments_instruction() -> None:
    async with serve_gateway(transcribe_instruction="Write it down.") as served:
        await served.openai.audio.transcriptions.create(model=MODEL, file=file())
        assert heard(served).messages[0].parts[1] == TextPart("Write it down.")


async def test_transcription_as_text_and_with_all_that_is_known(served: ServedGateway) -> None:
    ask = served.openai.audio.transcriptions.create
    assert await ask(model=MODEL, file=file(), response_format="text") == SAID
    verbose = await ask(model=MODEL, file=file(), response_format="verbose_json", language="en")
    TranscriptionVerbose.model_validate(verbose.model_dump(), strict=True)
    assert (verbose.text, verbose.language, verbose.duration) == (SAID, "en", SECONDS)
    assert verbose.usage is not None
    assert verbose.usage.seconds == SECONDS
    assert verbose.words is None
    untold = await ask(model=MODEL, file=file(), response_format="verbose_json")
    assert untold.language == "und"


async def test_transcription_is_streamed_as_it_is_made(served: ServedGateway) -> None:
    stream = await served.openai.audio.transcriptions.create(model=MODEL, file=file(), stream=True)
    events = [event async for event in stream]
    for event in events:
        type(event).model_validate(event.model_dump(), strict=True)
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert deltas == list(TEXTS)
    done = events[-1]
    assert done.type == "transcript.text.done"
    assert done.text == SAID
    assert done.usage is not None
    assert done.usage.total_tokens == 25


async def test_transcription_that_fails_ends_with_the_error(served: ServedGateway) -> None:
    async def break_off(session: Session) -> None:
        await session.opened()
        await session.text("Well")
        await session.error(Internal("enough"))

    served.fakes[THINKER].script = break_off
    stream = await served.openai.audio.transcriptions.create(model=MODEL, file=file(), stream=True)
    with pytest.raises(openai.APIError, match="enough"):
        _ = [event async for event in stream]
    with pytest.raises(openai.InternalServerError, match="enough"):
        await served.openai.audio.transcriptions.create(model=MODEL, file=file())


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": "diarized_json"}, "response_format", "not_implemented"),
        ({"response_format": "tape"}, "response_format", "invalid_argument"),
        ({"response_format": "verbose_json", "stream": "true"}, "response_format", ""),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "not_implemented"),
        ({"include[]": "logprobs"}, "include", "not_implemented"),
        ({"chunking_strategy": "server_vad"}, "chunking_strategy", "not_implemented"),
        ({"temperature": "hot"}, "temperature", "invalid_argument"),
        ({"temperature": "nan"}, "temperature", "invalid_argument"),
        ({"temperature": "-1"}, "temperature", "invalid_argument"),
        ({"language": "en\nSay no."}, "language", "invalid_argument"),
        ({"stream": "perhaps"}, "stream", "invalid_argument"),
        ({"model": ""}, "model", "invalid_argument"),
        ({"file": ("said.wav", b"no sound")}, "file", "invalid_argument"),
        ({"file": ("said.wav", b"")}, "file", "invalid_argument"),
    ],
)
async def test_transcription_refuses_a_wrong_field_by_its_name(
    served: ServedGateway, fields: dict[str, Any], param: str, code: str
) -> None:
    response = await post(served, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert error["code"] == (code or "invalid_argument")
    assert not served.fakes[THINKER].sessions


async def test_transcription_is_refused_by_a_model_that_does_not_know_it(
    served: ServedGateway, reader: Reader
) -> None:
    unknown = await post(served, model="whisper-9")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
    url = f"http://{reader[1].http_address}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as api:
        with pytest.raises(openai.BadRequestError) as refused:
            await api.audio.transcriptions.create(model="reader", file=file())
    assert refused.value.param == "model"
    assert "can't generate text" in refused.value.message
    told: stage_pb2.DescribeResponse = served.gateway.fleet[THINKER].require()
    told.reads_aloud = True
    tell_anew(served.gateway)
    try:
        aloud = await post(served)
        told.reads_aloud, told.input_sample_rate_hz = False, 0
        tell_anew(served.gateway)
        deaf = await post(served)
    finally:
        told.reads_aloud, told.input_sample_rate_hz = False, INPUT_RATE_HZ
        tell_anew(served.gateway)
    assert (aloud.status_code, aloud.json()["error"]["param"]) == (400, "model")
    assert (deaf.status_code, deaf.json()["error"]["param"]) == (400, "file")
    assert "doesn't accept audio" in deaf.json()["error"]["message"]


GOOD = (
    (named("model"), MODEL.encode()),
    (named("file") + '; filename="said.wav"\r\nContent-Type: audio/wav', file()[1]),
)


async def test_form_is_read_in_pieces_of_any_size(served: ServedGateway) -> None:
    body = form(*GOOD)
    for size in (1, 7, len(body)):
        served.fakes.reset()
        async with raw_client(served) as client:
            head = (
                f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
                "Transfer-Encoding: chunked\r\n\r\n"
            )
            pieces = (body[at : at + size] for at in range(0, min(len(body), 400), size))
            chunks = [*pieces, body[len(range(0, min(len(body), 400), size)) * size :]]
            sent = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks if each)
            await client.send(head.encode() + sent + b"0\r\n\r\n")
            answer = await client.reader.read()
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert np.abs(heard(served).recordings[0] - RECORDING).max() < 1e-6


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        (form(*GOOD, end=b""), 400, None, "not a valid multipart form"),
        (form(*GOOD)[:-40], 400, None, "ends within a part"),
        (b"{}", 400, None, "not a valid multipart form"),
        (b"", 400, None, "ends within a part"),
        (form(*GOOD, GOOD[0]), 400, "model", "comes twice"),
        (form(("Content-Type: text/plain", b"Hi")), 400, None, "without a name"),
        (form(GOOD[0], (named("file"), b"abcd")), 400, "file", "is a text"),
        (form(GOOD[1], (named("model"), b"\xff")), 400, "model", "UTF-8"),
        (form(GOOD[1]), 400, "model", "missing"),
        (form(*GOOD, (named("prompt"), b"x" * 101)), 413, "prompt", "must have a filename"),
        (form(*GOOD, *((named("a[]"), b"") for _ in range(5))), 413, None, "max_form_parts"),
        (form(*GOOD, ("x: y\r\n" * 99 + named("prompt"), b"")), 400, None, "header count"),
        (form(*GOOD, ("x" * 9999 + ": y", b"")), 400, None, "header size"),
        (
            form(GOOD[0], (GOOD[1][0], f"\r\n--{BOUNDARY}x".encode() * 99)),
            413,
            None,
            "max_form_parts",
        ),
    ],
)
async def test_form_that_will_not_do_is_refused(
    bounded: ServedGateway, body: bytes, status: int, param: str | None, message: str
) -> None:
    response = await send(bounded, body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert (await send(bounded, form(*GOOD))).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 300],
)
async def test_form_of_another_type_is_refused(served: ServedGateway, content_type: str) -> None:
    response = await send(served, form(*GOOD), content_type)
    assert response.status_code == 400
    assert "form" in response.json()["error"]["message"].lower()


async def test_form_takes_no_more_bytes_nor_time_than_other_bodies(bounded: ServedGateway) -> None:
    large = await post(bounded, file=("said.wav", bytes(1 << 20)))
    assert large.status_code == 413
    assert "max_body_bytes" in large.json()["error"]["message"]
    async with raw_client(bounded) as client:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
        )
        await client.send(head.encode() + form(*GOOD)[:500])
        assert (await client.reader.readline()).startswith(b"HTTP/1.1 408")
