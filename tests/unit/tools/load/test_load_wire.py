"""What a driver sends and reads: prompts, recordings, chat events, HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.errors import (
    AntiphonError,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
)
from antiphon.v1 import chunk_pb2
from antiphon_tools.load.content import LEAD, Content
from antiphon_tools.load.gateway_driver import HttpDriver
from antiphon_tools.load.http_stream import HttpAddress, get, server_sent_events
from antiphon_tools.load.measured import Trace
from antiphon_tools.load.openai_stream import ChatPiece, error_of, read_event
from antiphon_tools.load.recording import feeds_of, read_recording, write_recording
from antiphon_tools.load.served import ModelUnderLoad
from antiphon_tools.load.upstream import Timed


def test_prompt_asks_to_repeat_words_that_depend_on_the_number_only() -> None:
    content = Content(prompt_length=5)
    first, again, other = (content.prompt(number) for number in (1, 1, 2))
    assert first == again != other
    assert first.startswith(LEAD)
    assert len(first.removeprefix(LEAD).split()) == 5


def test_prompts_are_taken_in_turn() -> None:
    content = Content(prompts=("one", "two"))
    assert [content.prompt(number) for number in range(3)] == ["one", "two", "one"]


@pytest.mark.parametrize(
    ("outputs", "stages", "limits"),
    [
        (("text", "audio"), ("speaker",), {"": 8, "speaker": 13}),
        (("text",), (), {"": 8}),
        # The stage that reads the messages makes the frames itself, or leaves it to the other.
        (("audio",), (), {"": 13}),
        (("audio",), ("speaker",), {"": None, "speaker": 13}),
    ],
)
def test_lengths_go_to_the_stages_that_make_text_and_frames(
    outputs: tuple[str, ...], stages: tuple[str, ...], limits: dict[str, int | None]
) -> None:
    model = ModelUnderLoad("m", outputs=outputs, sampling_stages=stages)
    sampling = model.sampling(Content(reply_tokens=8, frames=12), 5)
    assert {stage: each.max_tokens for stage, each in sampling.items()} == limits
    assert {each.seed for each in sampling.values()} == {5}


def recorded(session_id: str, edge: str, at_s: float) -> Timed:
    return Timed(at_s, chunk_pb2.Chunk(session_id=session_id, edge=edge))


def test_recording_comes_back_by_session_with_its_own_times(tmp_path: Path) -> None:
    path = tmp_path / "run.chunks"
    chunks = [
        recorded("a", "input", 0.0),
        recorded("a", "prompt", 1.0),
        recorded("b", "prompt", 2.0),
        recorded("a", "tokens", 1.5),
        recorded("b", "tokens", 2.25),
    ]
    assert write_recording(path, chunks) == 5
    assert list(read_recording(path)) == chunks
    feeds = feeds_of(path, ("prompt", "tokens"))
    assert [[(t.at_s, t.chunk.edge) for t in feed] for feed in feeds] == [
        [(0.0, "prompt"), (0.5, "tokens")],
        [(0.0, "prompt"), (0.25, "tokens")],
    ]
    with pytest.raises(FailedPrecondition, match="codes"):
        feeds_of(path, ("codes",))


def test_recording_that_breaks_off_is_a_loss_wherever_it_does(tmp_path: Path) -> None:
    path = tmp_path / "run.chunks"
    write_recording(path, [recorded("a", "prompt", 0.0)])
    whole = path.read_bytes()
    first_record = len(b"antiphon chunks 1\n")
    for size in range(first_record + 1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DataLoss):
            list(read_recording(path))
    path.write_bytes(b"RIFF")
    with pytest.raises(InvalidArgument, match="not a recording"):
        list(read_recording(path))
    with pytest.raises(InvalidArgument, match="No such file"):
        list(read_recording(tmp_path / "missing"))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_chat_event_tells_the_bytes_of_its_audio(count: int) -> None:
    data = base64.b64encode(bytes(count)).decode()
    delta = {"audio": {"data": data, "transcript": "day"}}
    piece = read_event(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())
    assert piece == ChatPiece(text="day", pcm16_bytes=count)


def test_chat_event_of_text_of_the_end_and_of_nothing() -> None:
    assert read_event(b'{"choices":[{"delta":{"content":"hi"}}]}') == ChatPiece(text="hi")
    assert read_event(b'{"choices":[],"usage":{}}') == ChatPiece()
    image = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}'
    two = b'{"choices":[{"delta":{"images":[%b,%b]}}]}' % (image, image)
    assert read_event(two) == ChatPiece(images=2)
    steps = b'{"choices":[{"delta":{}}],"antiphon":{"progress":{"stage":"a","done":1,"due":2}}}'
    assert read_event(steps) == ChatPiece()
    assert read_event(b"[DONE]").done  # type: ignore[union-attr]
    with pytest.raises(DataLoss):
        read_event(b"{")


def test_error_of_a_response_is_typed() -> None:
    body = b'{"error":{"message":"busy","type":"rate_limit_error","code":"resource_exhausted"}}'
    assert isinstance(error_of(429, body), ResourceExhausted)
    assert isinstance(read_event(body), ResourceExhausted)
    assert error_of(502, b"<html>").message == "HTTP status 502"


@asynccontextmanager
async def http_server(answer: bytes) -> AsyncIterator[HttpAddress]:
    """A server that answers every request with these bytes and then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(
            line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:] if line
        )
        await reader.readexactly(int(fields.get("content-length", 0)))
        for place in range(0, len(answer), 7):
            writer.write(answer[place : place + 7])
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield HttpAddress("127.0.0.1", server.sockets[0].getsockname()[1])


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


def sized(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


async def test_events_are_read_however_the_response_is_cut() -> None:
    answer = chunked(b"data: on", b"e\n\nda", b"ta: two\r\n\r\n: comment\n\ndata: three\n\n")
    async with http_server(answer) as address:
        events = [event async for event in server_sent_events(address, "/", b"{}")]
    assert events == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    "answer", [sized(200, b"body"), chunked(b"bo", b"dy"), b"HTTP/1.1 200 OK\r\n\r\nbody"]
)
async def test_body_is_read_in_each_of_its_framings(answer: bytes) -> None:
    async with http_server(answer) as address:
        assert await get(address, "/") == b"body"


async def http_error(answer: bytes) -> AntiphonError:
    """What an HTTP request raises when the server answers with this."""
    async with http_server(answer) as address:
        driver = HttpDriver(address, ModelUnderLoad("m"), Content(), timeout_s=30)
        with pytest.raises(AntiphonError) as caught:
            await driver.ask(Trace(0, 0.0))
    return caught.value


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (
            sized(429, b'{"error":{"message":"m","code":"resource_exhausted"}}'),
            "resource_exhausted",
        ),
        (chunked(b'data: {"error":{"message":"m","code":"unavailable"}}\n\n'), "unavailable"),
        (sized(500, b"oops"), "internal"),
        (chunked(b"data: {}\n\n"), "data_loss"),
        (b"", "unavailable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: {}\n\n", "unavailable"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "data_loss"),
        (b"SSH-2.0-nothing\r\n\r\n", "data_loss"),
    ],
)
async def test_http_failure_is_a_typed_error(answer: bytes, code: str) -> None:
    assert (await http_error(answer)).code.value == code


@pytest.mark.parametrize("url", ["ftp://h:1", "h:1", "http://", "http://h:1/v1", "https://h:1/v1"])
def test_http_address_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="must have the form http://host:port"):
        HttpAddress.parse(url)


def test_http_address_is_read() -> None:
    read: Callable[[str], HttpAddress] = HttpAddress.parse
    assert read("http://localhost:8000/") == HttpAddress("localhost", 8000)
    secure = read("https://localhost")
    assert (secure.host, secure.port, str(secure)) == ("localhost", 443, "https://localhost:443")
