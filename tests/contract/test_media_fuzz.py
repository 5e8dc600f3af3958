"""Real files with mutated headers: rates, channels, lengths, dimensions and indices.

Whatever a header says, a file is decoded within its bounds or refused, no child process is left,
and the next file is decoded.
"""

from __future__ import annotations

import resource
from random import Random

import numpy as np
import pytest

from antiphon.errors import InvalidArgument
from antiphon_gateway.media.decoding.bounds import RejectedRecording
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_gateway.media.decoding.processes import LANES, MEMORY_BYTES
from antiphon_gateway.media.vision_in import IMAGE, File, read_files
from antiphon_services.thinker.mp4 import check_samples
from benchmarks.hostile import files
from tests.contract import media_files

MOST_S = 2.0
RATE_HZ = 16_000
CASES = 60
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)


def mutated(data: bytes, random: Random, head: int) -> bytes:
    """The file with one to four numbers of its first `head` bytes replaced; sometimes cut short."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        width = random.choice((1, 2, 4))
        at = random.randrange(min(head, len(changed) - 8))
        order = random.choice(("little", "big"))
        number = random.choice((*EXTREMES, random.getrandbits(32))) & (1 << 8 * width) - 1
        changed[at : at + width] = number.to_bytes(width, order)
    if random.random() < 0.2:
        del changed[random.randrange(1, len(changed)) :]
    return bytes(changed)


def plain() -> dict[str, bytes]:
    return {
        "wav": files.sound_file("WAV", "PCM_16", 2, 48_000, 0.5),
        "wav-float": files.sound_file("WAV", "FLOAT", 1, 48_000, 0.5),
        "rf64": files.sound_file("RF64", "PCM_16", 2, 48_000, 0.5),
        "flac": files.sound_file("FLAC", "PCM_16", 2, 48_000, 0.5),
        "vorbis": files.sound_file("OGG", "VORBIS", 2, 48_000, 0.5),
        "opus": files.sound_file("OGG", "OPUS", 2, 48_000, 0.5),
        "mp3": files.sound_file("MP3", "MPEG_LAYER_III", 2, 48_000, 0.5),
        "aiff": files.sound_file("AIFF", "PCM_16", 2, 48_000, 0.5),
        "caf": files.sound_file("CAF", "PCM_16", 2, 48_000, 0.5),
    }


MUXED = ("webm", "mp4-index-end", "mp4-index-front", "mp4-fragmented", "m4a-alac", "adts", "3gp")


async def check(kind: str, data: bytes, seed: str) -> None:
    """Decode mutations of a file, each of which ends within the bounds."""
    random = Random(f"{kind} {seed}")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    refusals: list[str] = []
    decoder = MediaDecoder(2)
    try:
        for case in range(CASES):
            given = mutated(data, random, random.choice((64, 512, len(data))))
            try:
                samples = await decoder.decode(given, RATE_HZ, MOST_S, "")
            except RejectedRecording as error:
                refusals.append(str(error))
                continue
            assert 0 < len(samples) <= MOST_S * RATE_HZ, (kind, seed, case)
            assert np.isfinite(samples).all(), (kind, seed, case)
        assert not [each for each in refusals if "CPU time" in each]
        assert len(await decoder.decode(data, RATE_HZ, MOST_S, "")) > 0
        assert decoder.processes.running == 0
    finally:
        await decoder.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime - before.ru_utime < LANES[-1].cpu_s
    assert used.ru_maxrss << 10 <= max(MEMORY_BYTES, before.ru_maxrss << 10)


@pytest.mark.parametrize("kind", plain())
async def test_a_mutated_file_is_decoded_within_its_bounds_or_refused(
    kind: str, fuzz_seed: str
) -> None:
    await check(kind, plain()[kind], fuzz_seed)


@media_files.needs_ffmpeg()
@pytest.mark.parametrize("kind", MUXED)
async def test_a_mutated_container_is_decoded_within_its_bounds_or_refused(
    kind: str, fuzz_seed: str
) -> None:
    await check(kind, media_files.muxed(kind, 0.5), fuzz_seed)


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "webp-lossless"])
async def test_a_mutated_image_is_taken_within_its_bounds_or_refused(
    kind: str, fuzz_seed: str
) -> None:
    whole = {
        "png": files.png_of(9, 7),
        "jpeg": files.jpeg_of(9, 7),
        "webp": files.webp_of(9, 7, b"VP8X"),
        "webp-lossless": files.webp_of(9, 7, b"VP8L"),
    }[kind]
    random = Random(f"{kind} {fuzz_seed}")
    fields = set()
    decoder = MediaDecoder(1)
    try:
        for _ in range(20 * CASES):
            given = File("image", mutated(whole, random, 64))
            try:
                await read_files([given], IMAGE, decoder.threads)
            except InvalidArgument as error:
                fields.add(error.field)
    finally:
        await decoder.close()
    assert fields == {"image"}


@media_files.needs_ffmpeg()
def test_a_mutated_index_of_a_video_is_counted_or_refused(fuzz_seed: str) -> None:
    random, fields = Random(f"mp4 {fuzz_seed}"), set()
    for kind in ("mp4-index-front", "mp4-fragmented"):
        data = media_files.muxed(kind, 0.5)
        for _ in range(10 * CASES):
            try:
                check_samples(mutated(data, random, 2048), "video")
            except InvalidArgument as error:
                fields.add(error.field)
    assert fields == {"video"}
