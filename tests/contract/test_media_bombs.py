"""Small files of which a decoder would make very much: refused by their headers, or cut short."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from random import Random

import pytest
import pytest_asyncio

from antiphon_gateway.media.image_size import MAX_CHUNKS, MAX_SEGMENTS
from antiphon_gateway.media.pyav import there_is_pyav
from benchmarks.hostile import files
from tests.contract.fake_stages import MAX_INPUT_AUDIO_S, THINKER
from tests.contract.fuzz_files import mutated
from tests.contract.media_files import FFMPEG, muxed, needs_ffmpeg
from tests.contract.served_gateway import ServedGateway, serve_gateway
from tests.contract.test_audio_input import FIELD, ask
from tests.contract.test_vision_input import IMAGE_FIELD, data_url
from tests.contract.test_vision_input import ask as ask_parts
from tests.contract.test_vision_input import seeing as seeing

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = MAX_INPUT_AUDIO_S * 0.9

SOUND: dict[str, tuple[Callable[[], bytes], str]] = {
    # A file, and what is said of it.
    "vorbis-255": (lambda: files.sound_file("OGG", "VORBIS", 255, 8_000, 0.2), "1 to 8 channels"),
    "vorbis-768k": (lambda: files.vorbis_at(768_000), "192000 Hz"),
    "opus-255": (files.opus_of_255_channels, "channels"),
    "flac-8x96k": (lambda: files.sound_file("FLAC", "PCM_16", 8, 96_000, LONG), "8 channels at 96"),
    "flac-655k": (lambda: files.sound_file("FLAC", "PCM_16", 1, 655_350, 0.1), "192000 Hz"),
    "wav-9": (lambda: files.sound_file("WAV", "PCM_16", 9, 8_000, 0.1), "1 to 8 channels, got 9"),
    "wav-8x96k": (lambda: files.sound_file("WAV", "PCM_U8", 8, 96_000, LONG), "8 channels at 9600"),
    "wav-768k": (lambda: files.sound_file("WAV", "PCM_16", 1, 768_000, 0.1), "192000 Hz"),
    "aiff-255": (lambda: files.sound_file("AIFF", "PCM_16", 255, 8_000, 0.1), "1 to 8 channels"),
    "caf-255": (lambda: files.sound_file("CAF", "PCM_16", 255, 8_000, 0.1), "1 to 8 channels"),
}


TOO_LONG = f"more than {MAX_INPUT_AUDIO_S:g} seconds of audio"

MUXED: dict[str, tuple[Callable[[], bytes], str]] = {
    "webm-opus-255": (lambda: files.in_webm(files.opus_of_255_channels()), "1 to 8 channels"),
    "webm-vorbis-768k": (lambda: files.in_webm(files.vorbis_at(768_000)), "192000 Hz"),
    "webm-long": (lambda: muxed("webm", 2 * MAX_INPUT_AUDIO_S), TOO_LONG),
    "mp4-long": (lambda: muxed("mp4-index-end", 2 * MAX_INPUT_AUDIO_S), TOO_LONG),
    "mp4-9": (lambda: described(muxed("mp4-index-front", 0.2), 20, 9), "1 to 8 channels, got 9"),
    "m4a-500": (lambda: described(muxed("m4a-index-end", 0.2), 28, 500), "got 500"),
}


def described(file: bytes, at: int, value: int) -> bytes:
    """An MP4 file with a number in the description of its sound replaced."""
    start = file.rindex(b"mp4a", 0, file.index(b"esds")) + at
    return file[:start] + value.to_bytes(2) + file[start + 2 :]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def wide() -> AsyncIterator[ServedGateway]:
    """A gateway that takes bodies of 8 MB."""
    async with serve_gateway(max_body_bytes=8 << 20) as served:
        yield served


@pytest.mark.parametrize("kind", SOUND)
async def test_sound_beyond_a_bound_is_refused_before_a_sample_is_decoded(
    wide: ServedGateway, kind: str
) -> None:
    make, said = SOUND[kind]
    response = await ask(wide, make())
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == FIELD
    assert said in error["message"]
    assert not wide.fakes[THINKER].sessions


@needs_ffmpeg()
@pytest.mark.parametrize("kind", MUXED)
async def test_sound_for_ffmpeg_is_refused_by_its_header(wide: ServedGateway, kind: str) -> None:
    make, said = MUXED[kind]
    response = await ask(wide, make(), name=kind.partition("-")[0])
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == FIELD
    assert said in error["message"]
    assert not wide.fakes[THINKER].sessions


segments = partial(files.jpeg_of_segments, MAX_SEGMENTS)

IMAGES = {
    "png": (files.png_of(60_000, 60_000), "image/png"),
    "jpeg": (files.jpeg_of(65_000, 65_000), "image/jpeg"),
    "webp-canvas": (files.webp_of(16_000, 16_000, b"VP8X"), "image/webp"),
    "webp-lossless": (files.webp_of(16_000, 16_000, b"VP8L"), "image/webp"),
    "webp-lossy": (files.webp_of(16_000, 16_000, b"VP8 "), "image/webp"),
    "jpeg-scans": (files.jpeg_of_scans(65), "image/jpeg"),
    # A row more than the bound.
    "png-row": (files.png_of(8_000, 8_001), "image/png"),
    "jpeg-row": (files.jpeg_of(8_000, 8_001), "image/jpeg"),
    "webp-canvas-row": (files.webp_of(8_000, 8_001, b"VP8X"), "image/webp"),
    "webp-lossless-row": (files.webp_of(8_000, 8_001, b"VP8L"), "image/webp"),
    "webp-lossy-row": (files.webp_of(8_000, 8_001, b"VP8 "), "image/webp"),
    "jpeg-segments": (segments(b"\xff\xfe\0\2", after_size=False), "image/jpeg"),
    "jpeg-late-segments": (segments(b"\xff\xfe\0\2", after_size=True), "image/jpeg"),
    "jpeg-markers": (segments(b"\xff\xd0", after_size=False), "image/jpeg"),
    "jpeg-fill": (segments(b"\xff", after_size=False), "image/jpeg"),
    "jpeg-late-fill": (segments(b"\xff", after_size=True), "image/jpeg"),
    "jpeg-junk": (segments(b"\0", after_size=True), "image/jpeg"),
    "png-chunks": (files.png_of_chunks(b"prVt", MAX_CHUNKS), "image/png"),
    "png-late-chunks": (files.png_of_chunks(b"prVt", MAX_CHUNKS, after_pixels=True), "image/png"),
    "png-pieces": (files.png_of_chunks(b"IDAT", MAX_CHUNKS), "image/png"),
    "png-profiles": (files.png_of_chunks(b"iCCP", 2), "image/png"),
}


@pytest.mark.parametrize("kind", IMAGES)
async def test_an_image_beyond_a_bound_is_refused_before_a_pixel_is_decoded(
    seeing: ServedGateway, kind: str
) -> None:
    file, media_type = IMAGES[kind]
    part = {"type": "image_url", "image_url": {"url": data_url(file, media_type)}}
    response = await ask_parts(seeing, part)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == IMAGE_FIELD
    assert "the maximum is" in error["message"]
    assert not seeing.fakes[THINKER].sessions


@pytest.mark.parametrize(("width", "height"), [(8_000, 8_000), (1, 1)])
async def test_an_image_within_the_bounds_goes_on(
    seeing: ServedGateway, width: int, height: int
) -> None:
    for file, media_type in (
        (files.png_of(width, height), "image/png"),
        (files.jpeg_of(width, height), "image/jpeg"),
        (files.jpeg_of_scans(64), "image/jpeg"),
        (files.jpeg_of_segments(1_000, b"\xff\xfe\0\2", after_size=False), "image/jpeg"),
        (files.jpeg_of_segments(1_000, b"\xff", after_size=True), "image/jpeg"),
        (files.png_of_chunks(b"IDAT", 10_000), "image/png"),
        (files.png_of_chunks(b"iCCP", 1), "image/png"),
        (files.webp_of(width, height, b"VP8X"), "image/webp"),
        (files.webp_of(width, height, b"VP8L"), "image/webp"),
        (files.webp_of(width, height, b"VP8 "), "image/webp"),
    ):
        part = {"type": "image_url", "image_url": {"url": data_url(file, media_type)}}
        assert (await ask_parts(seeing, part)).status_code == 200


READ = """
import asyncio, sys
from antiphon_gateway.media.decoding.bounds import RejectedRecording
from antiphon_gateway.media.decoding.decoder import MediaDecoder
async def main():
    decoder = MediaDecoder(2)
    while size := int.from_bytes(sys.stdin.buffer.read(4)):
        try:
            print(len(await decoder.decode(sys.stdin.buffer.read(size), 16000, 60.0, "")))
        except RejectedRecording:
            print("rejected")
    await decoder.close()
asyncio.run(main())
"""

SPEAK = """
import numpy as np
from antiphon_gateway.media.encoding import AudioEncoding, EncodingSteps, available_formats
sound = np.sin(np.arange(24_000) / 9).astype(np.float32)
loud = np.array([0, 9, -9, 1e30, -1e30], np.float32)
for name in available_formats():
    for speed in (0.25, 0.4, 0.5, 1.0, 1.7, 4.0):
        for pieces in ([], [sound[:0]], [sound[:1]], [sound], [loud], [sound[:7], sound, loud]):
            for whole in (False, True):
                steps = EncodingSteps(AudioEncoding(name, speed, whole), 24_000)
                for piece in pieces:
                    steps.add(piece)
                steps.finish()
        print(name, speed)
"""


async def run_script(script: str, given: bytes) -> tuple[list[str], str]:
    """The lines of a Python process's output, and what it writes to its standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "always", "-c", script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaints = await process.communicate(given)
    # All of it may be megabytes.
    complaints = complaints[:2000]
    assert process.returncode == 0, complaints.decode()
    return out.decode().splitlines(), complaints.decode()


def broken_recordings(seed: str) -> list[bytes]:
    """Files of every decoder, mutated in their headers and in their sound."""
    random = Random(f"complaints {seed}")
    whole = [
        files.sound_file(*kind, 2, 48_000, 0.5)
        for kind in (("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"), ("OGG", "OPUS"))
    ]
    whole += [files.sound_file("FLAC", "PCM_16", 2, 48_000, 0.5)]
    if FFMPEG:
        kinds = ("webm", "mp4-index-end", "mp4-fragmented", "m4a-alac", "adts", "3gp")
        whole += [muxed(kind, 0.5) for kind in kinds]
    return [mutated(each, random, most) for each in whole for most in (2, 4, 40)]


async def test_what_a_decoder_complains_of_is_not_written(fuzz_seed: str) -> None:
    given = [files.mp3_with_junk(), *broken_recordings(fuzz_seed)]
    sent = b"".join(len(each).to_bytes(4) + each for each in given)
    lines, complaints = await run_script(READ, sent + bytes(4))
    assert int(lines[0]) > 0
    assert len(lines) == len(given)
    assert complaints == ""


@pytest.mark.skipif(not there_is_pyav(), reason="needs PyAV (pip install 'antiphon[av]')")
async def test_what_an_encoder_complains_of_is_not_written() -> None:
    lines, complaints = await run_script(SPEAK, b"")
    assert "aac 0.25" in lines
    assert complaints == ""


async def test_a_form_of_bare_line_feeds_logs_nothing_of_the_parser(
    served: ServedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    body = b"--x\nContent-Disposition: form-data; name=model\n\nm\n--x--\n" * 3
    kind = {"content-type": "multipart/form-data; boundary=x"}
    response = await served.http.post("/v1/audio/transcriptions", content=body, headers=kind)
    assert response.status_code == 400
    part = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'
    trailing = part + b"junk\n" * 50
    await served.http.post("/v1/audio/transcriptions", content=trailing, headers=kind)
    assert [each for each in caplog.records if each.name.startswith("python_multipart")] == []
