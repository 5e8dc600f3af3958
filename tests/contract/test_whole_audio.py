"""Audio files that are whole before their first byte leaves, as readers of files take them."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import soundfile

from antiphon.values.segment import FinishReason
from antiphon_gateway.media.pyav import there_is_pyav
from tests.contract.fake_stages import Session
from tests.contract.reading_model import (
    PCM16,
    RATE_HZ,
    SAMPLES,
    VOCODER,
    Reader,
    break_off,
    open_reader,
    post,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

FORMATS = ("wav", "pcm", "mp3", "opus", "flac", "aac")
WAV_HEADER_BYTES = 44


def check_whole(answer: httpx.Response) -> None:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-length"] == str(len(answer.content))
    assert "transfer-encoding" not in answer.headers


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("sse", [False, True], ids=["bytes", "events"])
async def test_an_answer_delivered_whole_says_how_long_it_is(
    reader: Reader, name: str, sse: bool
) -> None:
    if name == "aac" and not there_is_pyav():
        pytest.skip("PyAV is not installed")
    answer = await post(
        reader,
        input="Read.",
        response_format=name,
        delivery="whole",
        stream_format="sse" if sse else "audio",
    )
    if sse:
        assert answer.headers["content-type"].startswith("text/event-stream")
        data = joined(answer)
    else:
        check_whole(answer)
        data = answer.content
    if name == "pcm":
        assert data == PCM16
    elif name == "wav":
        check_wav(data)
    elif name != "aac":
        check_with_libsndfile(data, exact=name == "flac")


def joined(answer: httpx.Response) -> bytes:
    """The file of an answer in events."""
    events = [json.loads(each.removeprefix("data: ")) for each in answer.text.split("\n\n") if each]
    return base64.b64decode("".join(each.get("audio", "") for each in events))


def check_wav(data: bytes) -> None:
    """Every size in the header is the file's."""
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    assert int.from_bytes(data[40:44], "little") == len(data) - WAV_HEADER_BYTES
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (1, RATE_HZ, 2)
        assert file.getnframes() == len(SAMPLES)
        assert file.readframes(file.getnframes()) == PCM16
    check_with_libsndfile(data, exact=True)


def check_with_libsndfile(data: bytes, *, exact: bool) -> None:
    heard, _ = soundfile.read(io.BytesIO(data), dtype="int16")
    if exact:
        assert heard.tobytes() == PCM16
    else:
        assert len(heard) >= len(SAMPLES)


def flac_of(path: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["flac", "-t", "-s", path], capture_output=True, check=False)


def ffmpeg_of(path: Path) -> subprocess.CompletedProcess[bytes]:
    arguments = ["-v", "error", "-i", str(path), "-f", "s16le", "-"]
    return subprocess.run(["ffmpeg", *arguments], capture_output=True, check=False)


@pytest.mark.parametrize("program", [flac_of, ffmpeg_of], ids=["flac", "ffmpeg"])
@pytest.mark.parametrize("delivery", [{}, {"delivery": "stream"}], ids=["default", "streamed"])
async def test_programs_read_flac(
    reader: Reader,
    tmp_path: Path,
    program: Callable[[Path], subprocess.CompletedProcess[bytes]],
    delivery: dict[str, Any],
) -> None:
    name = "flac" if program is flac_of else "ffmpeg"
    if shutil.which(name) is None and "ANTIPHON_CI" not in os.environ:
        pytest.skip(f"{name} is not installed")
    answer = await post(reader, input="Read.", response_format="flac", **delivery)
    path = tmp_path / "answer.flac"
    path.write_bytes(answer.content)
    read = program(path)
    assert (read.returncode, read.stderr if not delivery else b"") == (0, b"")
    assert program is flac_of or read.stdout == PCM16


async def test_flac_is_whole_unless_it_is_asked_for_as_a_stream(reader: Reader) -> None:
    """Its header has no way of leaving the length open that libsndfile can read."""
    answer = await post(reader, input="Read.", response_format="flac")
    check_whole(answer)
    check_with_libsndfile(answer.content, exact=True)
    streamed = await post(reader, input="Read.", response_format="flac", delivery="stream")
    assert "content-length" not in streamed.headers
    # The field's 0: unknown.
    assert int.from_bytes(streamed.content[21:26], "big") & (1 << 36) - 1 == 0


@pytest.mark.parametrize("edge", ["audio", "frames"])
async def test_a_deployment_that_delivers_audio_whole_says_how_long_answers_are(edge: str) -> None:
    async with open_reader(delivery={edge: "whole"}) as reader:
        answer = await post(reader, input="Read.", response_format="wav")
        streamed = await post(reader, input="Read.", response_format="wav", delivery="stream")
    assert "content-length" not in streamed.headers
    if edge == "audio":
        check_whole(answer)
        check_wav(answer.content)
    else:
        assert "content-length" not in answer.headers


async def test_a_whole_answer_that_fails_is_an_error_and_no_cut_file() -> None:
    async with open_reader() as reader:
        reader[0][VOCODER].script = break_off
        answer = await post(reader, input="Read.", response_format="wav", delivery="whole")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "enough"


async def test_an_empty_answer_is_a_file_without_samples() -> None:
    async def say_nothing(session: Session) -> None:
        await session.opened()
        await session.chunk("audio", {"samples": SAMPLES[:0]}, finish=FinishReason.STOP)
        await session.report()

    async with open_reader() as reader:
        reader[0][VOCODER].script = say_nothing
        answer = await post(reader, input="Read.", response_format="wav", delivery="whole")
    check_whole(answer)
    assert len(answer.content) == WAV_HEADER_BYTES
