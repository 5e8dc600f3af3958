"""What the gRPC endpoint says of permanent errors, and what the journal has of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

import antiphon
from antiphon.errors import AntiphonError, Internal, InvalidArgument, NotFound
from antiphon.v1 import options_pb2, session_pb2, speech_pb2
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import speech_stub
from benchmarks.hostile.files import png_of
from tests.contract.fake_stages import THINKER, Session
from tests.contract.served_gateway import ServedGateway, serve_gateway, tell_anew
from tests.own_records import lines_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

Part = speech_pb2.Part
NOTHING = Part(audio=options_pb2.AudioPart(wav=b"noise"))


@pytest_asyncio.fixture(loop_scope="session")
async def client(served: ServedGateway) -> AsyncIterator[antiphon.AsyncClient]:
    async with antiphon.AsyncClient(served.gateway.grpc_address) as client:
        yield client


def journal_line(served: ServedGateway, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """The one line of the last session. Requests of earlier tests may be logged as late as now."""
    session = served.fakes[THINKER].sessions[-1].opening.session_id
    lines = [json.loads(each) for each in lines_of(caplog, "gateway.requests")]
    line: dict[str, Any]
    (line,) = [each for each in lines if each.get("session") == session]
    return line


@pytest.mark.parametrize("letter", ["v", "ß", "\u6f22", "\U0001d11e", "\n", '"'])
async def test_generate_refuses_a_very_long_voice_for_good(
    client: antiphon.AsyncClient, letter: str
) -> None:
    with pytest.raises(InvalidArgument, match="chelsie, ethan") as caught:
        await client.generate("Hi", voice=letter * 20_000).collect()
    assert caught.value.field == "voice"
    assert not caught.value.retryable
    assert caught.value.message.startswith("voice: unknown voice")


async def test_generate_refuses_a_very_long_model_name_for_good(
    client: antiphon.AsyncClient,
) -> None:
    with pytest.raises(NotFound) as caught:
        await client.generate("Hi", model="m" * 20_000).collect()
    assert not caught.value.retryable


async def test_generate_refuses_a_message_above_the_limit_for_good(
    client: antiphon.AsyncClient,
) -> None:
    with pytest.raises(InvalidArgument, match="larger than max") as caught:
        await client.generate("Hi" * (1 << 20)).collect()
    assert not caught.value.retryable


def user(*parts: Part) -> dict[str, Any]:
    return {"messages": [speech_pb2.Message(role="user", parts=parts)]}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "role": ({"sampling": {"r" * 20_000: session_pb2.Sampling()}}, "sampling.rrr"),
    "modality": ({"modalities": ["text", "m" * 20_000]}, "modalities"),
    "who": ({"messages": [speech_pb2.Message(role="x" * 20_000, parts=[Part(text="Hi")])]},
            "messages[0].role"),
    "parts": (user(*[Part(text="a")] * 4097), "messages[0]"),
    "recordings": (user(*[NOTHING] * 65), "messages[0].parts[64].audio.wav"),
    "ramp": ({"chunk_policy": session_pb2.ChunkPolicy(first=1, ramp=[1] * 100_000, steady=1)},
             "chunk_policy"),
    "chunk": ({"chunk_policy": session_pb2.ChunkPolicy(first=1, ramp=[1], steady=(1 << 32) - 1)},
              "chunk_policy"),
    "not a number": ({"sampling": {THINKER: session_pb2.Sampling(temperature=float("nan"))}},
                     "sampling.thinker.temperature"),
    "infinite": ({"sampling": {THINKER: session_pb2.Sampling(top_p=float("inf"))}},
                 "sampling.thinker.top_p"),
    "option": ({"options": {"o" * 20_000: options_pb2.OptionInput(number=1)}}, "options.ooo"),
    "nothing": ({"options": {"style": options_pb2.OptionInput()}}, "options.style"),
    "tiny": ({"sampling": {THINKER: session_pb2.Sampling(temperature=1e-320)}},
             "sampling.thinker.temperature"),
    "stops": ({"sampling": {THINKER: session_pb2.Sampling(stop=["s"] * 50_000)}},
              "sampling.thinker.stop"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
async def test_generate_refuses_what_has_no_bound_naming_the_field(
    served: ServedGateway, name: str
) -> None:
    fields, field = WRONG[name]
    message = speech_pb2.Message(role="user", parts=[Part(text="Hi")])
    request = speech_pb2.GenerateRequest(**{"messages": [message], **fields})
    async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await speech_stub(channel).Generate(request).read()
    error: AntiphonError = error_from_rpc(caught.value)
    assert isinstance(error, InvalidArgument), error
    assert error.field.startswith(field)


MANY = {
    "parts": (speech_pb2.GenerateRequest(**user(*[Part(text="a")] * 5000)), "messages[0]"),
    "messages": (
        speech_pb2.GenerateRequest(messages=[speech_pb2.Message(role="user")] * 5000),
        "messages[4096]",
    ),
    "roles": (
        speech_pb2.GenerateRequest(
            **user(Part(text="a")), sampling={str(n): session_pb2.Sampling() for n in range(17)}
        ),
        "sampling",
    ),
    "options": (
        speech_pb2.GenerateRequest(
            **user(Part(text="a")),
            options={str(n): options_pb2.OptionInput(number=n) for n in range(65)},
        ),
        "options",
    ),
    "modalities": (
        speech_pb2.GenerateRequest(**user(Part(text="a")), modalities=["text"] * 17),
        "modalities",
    ),
    "template variables": (
        speech_pb2.GenerateRequest(
            **user(Part(text="a")),
            chat_template_kwargs=json.dumps({f"v{n}": n for n in range(17)}),
        ),
        "chat_template_kwargs",
    ),
    "no template variables": (
        speech_pb2.GenerateRequest(**user(Part(text="a")), chat_template_kwargs="[1]"),
        "chat_template_kwargs",
    ),
    "fields": (speech_pb2.GenerateRequest(modalities=["text"] * 20_001), ""),
    "noise": (b"\x0b\xff\xff", ""),
    "no UTF-8": (b"\x0a\x01\xff", ""),
}


@pytest.mark.parametrize("name", MANY)
async def test_generate_refuses_what_there_is_too_much_of(name: str) -> None:
    message, field = MANY[name]
    data = message if isinstance(message, bytes) else message.SerializeToString()
    async with (
        serve_gateway(max_body_values=20_000) as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_stream("/antiphon.v1.SpeechService/Generate")(data).read()
        error = error_from_rpc(caught.value)
        assert isinstance(error, InvalidArgument), error
        assert error.field == field
        assert not any(stage.sessions for stage in served.fakes.by_role.values())


@pytest.mark.parametrize("to_the_end", [True, False])
async def test_a_stream_that_fails_midway_is_journaled_with_its_error(
    served: ServedGateway,
    client: antiphon.AsyncClient,
    caplog: pytest.LogCaptureFixture,
    to_the_end: bool,
) -> None:
    async def break_off(session: Session) -> None:
        await session.opened()
        await session.text("Hel")
        await session.error(Internal("the engine broke"))

    served.fakes[THINKER].script = break_off
    caplog.clear()
    if to_the_end:
        message = speech_pb2.Message(role="user", parts=[Part(text="Hi")])
        request = speech_pb2.GenerateRequest(messages=[message], modalities=["text"])
        async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
            *_, last = [event async for event in speech_stub(channel).Generate(request)]
        assert last.error.message == "the engine broke"
    else:
        # The SDK cancels the call when it has read the error.
        with pytest.raises(Internal, match="the engine broke"):
            await client.generate("Hi", modalities=["text"]).collect()
    await served.gateway.calls.wait_idle()
    line = journal_line(served, caplog)
    assert (line["status"], line["error"], line["stage"]) == ("INTERNAL", "internal", THINKER)


async def test_what_a_stage_says_of_a_recording_names_its_path_here_too(
    served: ServedGateway, client: antiphon.AsyncClient
) -> None:
    async def refuse(session: Session) -> None:
        await session.opened()
        await session.error(InvalidArgument("image.0: is no picture", field="image.0"))

    told = served.gateway.fleet[THINKER].require()
    told.input_kinds.append("image")
    told.max_input_images = 1
    tell_anew(served.gateway)
    served.fakes[THINKER].script = refuse
    message = antiphon.Message.user("See", antiphon.Image(png_of(9, 7)))
    try:
        with pytest.raises(InvalidArgument) as caught:
            await client.generate([message], modalities=["text"]).collect()
    finally:
        told.input_kinds.remove("image")
        told.max_input_images = 0
        tell_anew(served.gateway)
    field = "messages[0].parts[1].image.file"
    assert (caught.value.field, caught.value.message) == (field, f"{field}: is no picture")
