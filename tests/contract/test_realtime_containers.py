"""Audio of a conversation that comes in a container: WAV of the session's format is read, and every
other file is refused, where it would be heard as noise."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np
import pytest
import soundfile

import antiphon
from antiphon_gateway.media.live_audio import A_LAW, MU_LAW, PCM16, LiveFormat, bare_samples
from tests.contract.converse_client import said, until, until_failed
from tests.contract.fuzz_files import mutated
from tests.contract.media_files import muxed, needs_ffmpeg
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import ServedGateway

in_session = pytest.mark.asyncio(loop_scope="session")

RATE_HZ = 24_000
MUTATIONS = 40
SAID = (8_000 * np.sin(2 * np.pi * 330 * np.arange(RATE_HZ) / RATE_HZ)).astype("<i2")


@cache
def file_of(container: str, subtype: str | None = None, rate_hz: int = RATE_HZ) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, SAID, rate_hz, format=container, subtype=subtype)
    return out.getvalue()


def message(data: bytes) -> dict[str, Any]:
    part = {"type": "input_audio", "audio": base64.b64encode(data).decode()}
    return {"type": "message", "role": "user", "content": [part]}


OTHERS = [
    pytest.param(lambda: file_of("WAV", "FLOAT"), "WAV", id="wav_float"),
    pytest.param(lambda: file_of("WAV", "PCM_16", 16_000), "16000 Hz", id="wav_16_khz"),
    pytest.param(lambda: b"RIFF\x24\0\0\0WAVEfmt ", "not a valid WAV file", id="wav_cut"),
    pytest.param(lambda: file_of("OGG"), "Ogg", id="ogg"),
    pytest.param(lambda: file_of("FLAC"), "FLAC", id="flac"),
    pytest.param(lambda: file_of("MP3"), "MP3", id="mp3"),
    pytest.param(lambda: file_of("AIFF"), "AIFF", id="aiff"),
    pytest.param(lambda: muxed("webm", 1.0), "WebM", id="webm", marks=needs_ffmpeg()),
    pytest.param(lambda: muxed("m4a-index-end", 1.0), "M4A", id="m4a", marks=needs_ffmpeg()),
    pytest.param(lambda: muxed("adts", 1.0), "AAC", id="aac", marks=needs_ffmpeg()),
]


@pytest.mark.parametrize(("make", "words"), OTHERS)
@in_session
async def test_a_file_in_an_item_or_a_first_piece_is_refused_with_the_remedy(
    served: ServedGateway, make: Any, words: str
) -> None:
    data = make()
    async with realtime(served) as client:
        await client.end_turns_itself()
        await client.send("conversation.item.create", item=message(data))
        error = (await client.until("error"))["error"]
        assert error["param"] == "item.content[0].audio"
        piece = base64.b64encode(data[:4096]).decode()
        for _ in range(2):
            await client.send("input_audio_buffer.append", audio=piece)
            other = (await client.until("error"))["error"]
            assert other["param"] == "audio"
        for each in (error, other):
            assert words in each["message"]
            assert "send audio/pcm without a container, mono at 24000 Hz" in each["message"]
        await client.say("Still here")


def quarters(data: bytes) -> list[bytes]:
    """Four pieces of whole samples."""
    size = len(data) // 8 * 2
    return [data[start : start + size] for start in range(0, 4 * size, size)]


@in_session
async def test_later_pieces_of_a_refused_file_are_not_samples(served: ServedGateway) -> None:
    data = file_of("OGG")
    async with realtime(served) as client:
        await client.end_turns_itself()

        async def append(piece: bytes) -> None:
            encoded = base64.b64encode(piece).decode()
            await client.send("input_audio_buffer.append", audio=encoded)

        for piece in quarters(data):
            await append(piece)
            error = (await client.until("error"))["error"]
            assert error["param"] == "audio"
        assert "input_audio_buffer.clear" in error["message"]
        await client.send("input_audio_buffer.commit")
        assert "is empty" in (await client.until("error"))["error"]["message"]
        # After a commit, a clearing, or with a file that can be read, a recording begins again.
        for again in ("commit", "clear", "wav"):
            await append(quarters(data)[0])
            await client.until("error")
            if again != "wav":
                await client.send(f"input_audio_buffer.{again}")
                await client.until("error" if again == "commit" else "input_audio_buffer.cleared")
            await append(file_of("WAV", "PCM_16") if again == "wav" else SAID.tobytes())
            await append(SAID.tobytes())
            await client.send("input_audio_buffer.commit")
            added = (await client.until("conversation.item.done"))["item"]["id"]
            await client.send("conversation.item.retrieve", item_id=added)
            told = (await client.until("conversation.item.retrieved"))["item"]
            assert base64.b64decode(told["content"][0]["audio"]) == SAID.tobytes() * 2


@in_session
async def test_wav_of_the_format_of_the_session_is_its_samples(served: ServedGateway) -> None:
    data = file_of("WAV", "PCM_16")
    async with realtime(served) as client:
        await client.end_turns_itself()
        await client.send("conversation.item.create", item=message(data))
        ids = [(await client.until("conversation.item.done"))["item"]["id"]]
        for start in range(0, len(data), 9_999):
            piece = base64.b64encode(data[start : start + 9_999]).decode()
            await client.send("input_audio_buffer.append", audio=piece)
        await client.send("input_audio_buffer.commit")
        ids.append((await client.until("conversation.item.done"))["item"]["id"])
        # After a commit the next piece begins a recording again.
        await client.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())
        await client.send("input_audio_buffer.commit")
        ids.append((await client.until("conversation.item.done"))["item"]["id"])
        for each in ids:
            await client.send("conversation.item.retrieve", item_id=each)
            told = (await client.until("conversation.item.retrieved"))["item"]
            assert base64.b64decode(told["content"][0]["audio"]) == SAID.tobytes()


@in_session
async def test_a_file_in_an_item_over_grpc_is_refused_or_read_in_the_same_way(
    served: ServedGateway,
) -> None:
    address = served.gateway.grpc_address
    async with antiphon.AsyncClient(address) as client, client.converse() as call:
        wav, ogg = (file_of("WAV", "PCM_16"), file_of("OGG"))
        await call.add(antiphon.Item("user", (antiphon.RecordedPart(wav, RATE_HZ),)))
        added = await until(call, antiphon.ItemCreated)
        assert added.item.parts == (antiphon.RecordedPart(b"", RATE_HZ, len(SAID) / RATE_HZ),)
        await call.add(antiphon.Item("user", (antiphon.RecordedPart(ogg, RATE_HZ),)))
        error = (await until_failed(call)).error
        assert (error.field or "").endswith("recorded.pcm16")
        assert "is a Ogg file; send audio/pcm without a container" in error.message


@pytest.mark.parametrize(("make", "words"), OTHERS)
@in_session
async def test_a_file_in_a_first_piece_over_grpc_is_refused_with_the_remedy(
    served: ServedGateway, make: Any, words: str
) -> None:
    piece = make()[:4096]
    address = served.gateway.grpc_address
    async with antiphon.AsyncClient(address) as client, client.converse(turns=None) as call:
        for _ in range(2):
            await call.send_audio(piece, RATE_HZ)
            error = (await until_failed(call)).error
            assert error.field == "append_audio.pcm16"
            assert words in error.message
            assert "send audio/pcm without a container, mono at 24000 Hz" in error.message
        await said(call, "Still here")


@in_session
async def test_later_pieces_of_a_refused_file_over_grpc_are_not_samples(
    served: ServedGateway,
) -> None:
    data = file_of("OGG")
    address = served.gateway.grpc_address
    async with antiphon.AsyncClient(address) as client, client.converse(turns=None) as call:
        for piece in quarters(data):
            await call.send_audio(piece, RATE_HZ)
            error = (await until_failed(call)).error
            assert error.field == "append_audio.pcm16"
        assert "clear_audio" in error.message
        await call.commit_audio()
        assert "is empty" in (await until_failed(call)).error.message
        await call.send_audio(SAID.tobytes(), RATE_HZ)
        await call.send_audio(quarters(data)[0], RATE_HZ)
        await call.clear_audio()
        await call.send_audio(quarters(data)[0], RATE_HZ)
        await until_failed(call)
        await call.clear_audio()
        await call.send_audio(SAID.tobytes(), RATE_HZ)
        await call.commit_audio()
        added = (await until(call, antiphon.ItemCreated)).item
        assert added.parts == (antiphon.RecordedPart(b"", RATE_HZ, len(SAID) / RATE_HZ),)


@in_session
async def test_wav_in_a_first_piece_over_grpc_is_its_samples(served: ServedGateway) -> None:
    data = file_of("WAV", "PCM_16")
    address = served.gateway.grpc_address
    async with antiphon.AsyncClient(address) as client, client.converse(turns=None) as call:
        # After a commit, and after a clearing, the next piece begins a recording again.
        for _ in range(2):
            await call.send_audio(data, RATE_HZ)
            await call.clear_audio()
            for start in range(0, len(data), 9_998):
                await call.send_audio(data[start : start + 9_998], RATE_HZ)
            await call.commit_audio()
            added = (await until(call, antiphon.ItemCreated)).item
            assert added.parts == (antiphon.RecordedPart(b"", RATE_HZ, len(SAID) / RATE_HZ),)


PIECES = {
    "wav": lambda: file_of("WAV", "PCM_16"),
    "ogg": lambda: file_of("OGG"),
    "flac": lambda: file_of("FLAC"),
    "mp3": lambda: file_of("MP3"),
    "aiff": lambda: file_of("AIFF"),
    **{
        kind: pytest.param(partial(muxed, kind, 1.0), marks=needs_ffmpeg())
        for kind in ("webm", "mp4-index-end", "mp4-fragmented", "adts")
    },
}


def mutated_pieces(make: Callable[[], bytes], seed: str) -> list[bytes]:
    """Beginnings of a file, each mutated near its start, where the headers are."""
    random, head = Random(seed), make()[:6_000]
    return [mutated(head[:200], random) + head[200:] for _ in range(MUTATIONS)]


@pytest.mark.parametrize("make", PIECES.values(), ids=PIECES)
@in_session
async def test_a_mutated_file_in_a_first_piece_is_refused_or_taken_as_samples(
    served: ServedGateway, make: Callable[[], bytes], fuzz_seed: str
) -> None:
    async with realtime(served) as client:
        await client.end_turns_itself()
        for data in mutated_pieces(make, fuzz_seed):
            piece = base64.b64encode(data).decode()
            await client.send("input_audio_buffer.append", audio=piece)
            await client.send("input_audio_buffer.clear")
            event = await client.next()
            if event["type"] == "error":
                assert event["error"]["type"] == "invalid_request_error", data
                assert event["error"]["param"] == "audio", data
                event = await client.next()
            assert event["type"] == "input_audio_buffer.cleared", data
        await client.say("Still here")


@pytest.mark.parametrize("make", PIECES.values(), ids=PIECES)
@in_session
async def test_a_mutated_file_in_a_first_piece_over_grpc_is_refused_or_taken_as_samples(
    served: ServedGateway, make: Callable[[], bytes], fuzz_seed: str
) -> None:
    address = served.gateway.grpc_address
    async with antiphon.AsyncClient(address) as client, client.converse(turns=None) as call:
        for data in mutated_pieces(make, fuzz_seed):
            await call.send_audio(data, RATE_HZ)
            await call.clear_audio()
        await call.add("Still here")
        async for event in call:
            if isinstance(event, antiphon.ItemCreated):
                break
            if isinstance(event, antiphon.CommandFailed):
                assert isinstance(event.error, antiphon.InvalidArgument)
                assert event.error.field == "append_audio.pcm16"


@pytest.mark.parametrize("law", [MU_LAW, A_LAW], ids=lambda law: law.name)
def test_wav_of_a_telephone_is_read_in_the_law_of_the_session_alone(law: LiveFormat) -> None:
    subtype = {"audio/pcmu": "ULAW", "audio/pcma": "ALAW"}[law.name]
    data = file_of("WAV", subtype, 8_000)
    assert len(bare_samples(data, law, "audio")) == len(SAID)
    with pytest.raises(antiphon.InvalidArgument, match=subtype):
        bare_samples(data, PCM16, "audio")


def test_samples_that_look_like_one_frame_of_mpeg_are_samples() -> None:
    # Each of these two bytes begins a frame of MP3 or of AAC.
    for head in (b"\xff\xfb\x90\x00", b"\xff\xf1\x50\x80\x10\x00"):
        data = head + SAID.tobytes()
        assert bare_samples(data, PCM16, "audio") == data
    assert bare_samples(b"", PCM16, "audio") == b""
    assert bare_samples(b"\xff\xf1", PCM16, "audio") == b"\xff\xf1"
