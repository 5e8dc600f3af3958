"""Real files with mutated headers: rates, channels, lengths, dimensions and indices.

Whatever a header says, a file is decoded within its bounds or refused, no child process is left,
and the next file is decoded.
"""

from __future__ import annotations

from random import Random

import pytest

from antiphon.errors import InvalidArgument
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_gateway.media.vision_in import IMAGE, File, read_files
from antiphon_services.thinker.mp4 import check_samples
from benchmarks.hostile import files
from tests.contract import media_files
from tests.contract.mutated_decoding import CASES, check, mutated


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


@pytest.mark.parametrize("kind", plain())
def test_a_mutated_file_is_decoded_within_its_bounds_or_refused(kind: str, fuzz_seed: str) -> None:
    check(plain()[kind], f"{kind} {fuzz_seed}")


@media_files.needs_ffmpeg()
@pytest.mark.parametrize("kind", MUXED)
def test_a_mutated_container_is_decoded_within_its_bounds_or_refused(
    kind: str, fuzz_seed: str
) -> None:
    check(media_files.muxed(kind, 0.5), f"{kind} {fuzz_seed}")


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
