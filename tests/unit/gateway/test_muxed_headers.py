"""Headers of WebM and MP4 files, as written by hand: what they state is checked without FFmpeg."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest

from antiphon_gateway.media.decoding.bounds import (
    CostlyRecording,
    RecordingTooLong,
    RejectedRecording,
    most_samples,
)
from antiphon_gateway.media.decoding.containers import ADTS, MATROSKA, MP4
from antiphon_gateway.media.decoding.mp4 import MAX_INDEX_BYTES, MAX_INDEXED_SAMPLES
from antiphon_gateway.media.decoding.muxed_headers import SPARE_HEADER_S, check_muxed
from antiphon_gateway.media.decoding.muxed_sound import MAX_TRACKS

MOST_S = 60.0
COST_SAMPLES = most_samples(MOST_S + SPARE_HEADER_S)


def element(kind: int, content: bytes) -> bytes:
    return (
        kind.to_bytes((kind.bit_length() + 7) // 8) + (1 << 56 | len(content)).to_bytes(8) + content
    )


def private_of(codec: bytes, channels: int, rate_hz: int) -> bytes:
    if codec == b"A_OPUS":
        return b"OpusHead\1" + bytes([channels]) + bytes(9)
    if codec == b"A_VORBIS":
        head = b"\1vorbis" + bytes(4) + bytes([channels]) + struct.pack("<I", rate_hz)
        return b"\2\x1e\x1e" + head
    bits = rate_hz << 4 | channels - 1 << 1
    return b"fLaC\0\0\0\x22" + bytes(10) + bits.to_bytes(3) + bytes(21)


def track(
    *, codec: bytes = b"A_OPUS", channels: int = 1, rate_hz: float = 48_000.0, private: bytes = b""
) -> bytes:
    audio = element(0x9F, bytes([channels])) + element(0xB5, struct.pack(">d", rate_hz))
    inner = element(0x83, b"\2") + element(0x86, codec) + element(0xE1, audio)
    return element(0xAE, inner + element(0x63A2, private))


VIDEO = element(0xAE, element(0x83, b"\1") + element(0x86, b"V_VP8"))


def webm(*tracks: bytes, seconds: float = 1.0, live: bool = False) -> bytes:
    info = element(0x2AD7B1, (1_000_000).to_bytes(3))
    if not live:
        info += element(0x4489, struct.pack(">d", seconds * 1000))
    cluster = b"\x1f\x43\xb6\x75" + (b"\xff" if live else b"\x84") + b"\xa3\x81\xff\xae"
    content = element(0x1549A966, info) + element(0x1654AE6B, b"".join(tracks)) + cluster
    head = element(0x1A45DFA3, b"\x42\x82\x84webm")
    return head + b"\x18\x53\x80\x67" + b"\x01" + b"\xff" * 7 + content


def box(kind: bytes, *content: bytes) -> bytes:
    inside = b"".join(content)
    return struct.pack(">I", 8 + len(inside)) + kind + inside


def entry(kind: bytes, channels: int, rate_hz: int, *inner: bytes, version: int = 0) -> bytes:
    if version == 2:
        head = bytes(8) + struct.pack(">H", 2) + bytes(22) + struct.pack(">dI", rate_hz, channels)
        return box(kind, head, bytes(20), *inner)
    head = bytes(16) + struct.pack(">HHIHH", channels, 16, 0, rate_hz, 0)
    return box(kind, head, *inner)


def trak(
    described: bytes, *, seconds: float = 1.0, counts: bytes = b"", wide: bool = False
) -> bytes:
    times = bytes(16) if wide else bytes(8)
    length = struct.pack(">Q" if wide else ">I", round(seconds * 1000))
    head = bytes([wide, 0, 0, 0]) + times + struct.pack(">I", 1000) + length + bytes(4)
    table = counts or struct.pack(">II", 50, 1024)
    stts = box(b"stts", bytes(4), struct.pack(">I", len(table) // 8), table)
    stsd = box(b"stsd", bytes(4), struct.pack(">I", 1), described)
    hdlr = box(b"hdlr", bytes(8), b"soun", bytes(12))
    # QuickTime has another one in a track, of how its data are found.
    data = box(b"hdlr", b"dhlr", bytes(4), b"alis", bytes(12))
    minf = box(b"minf", data, box(b"stbl", stsd, stts))
    return box(b"trak", box(b"mdia", box(b"mdhd", head), hdlr, minf))


def mp4(*inside: bytes) -> bytes:
    return box(b"ftyp", b"M4A ") + box(b"mdat", bytes(100)) + box(b"moov", *inside)


AAC = entry(b"mp4a", 2, 44_100)

GOOD = {
    "opus": (MATROSKA, webm(track(private=private_of(b"A_OPUS", 8, 0)))),
    "opus-live": (MATROSKA, webm(track(private=private_of(b"A_OPUS", 2, 0)), live=True)),
    "behind-video": (MATROSKA, webm(VIDEO, track())),
    "no-sound": (MATROSKA, webm(VIDEO)),
    "second-track": (MATROSKA, webm(track(), track(channels=9))),
    "a-bit-longer": (MATROSKA, webm(track(), seconds=MOST_S + SPARE_HEADER_S)),
    "aac": (MP4, mp4(trak(AAC))),
    "unstated": (MP4, mp4(trak(entry(b"mp4a", 0, 0)))),
    "most-tracks": (MP4, mp4(*[trak(AAC)] * MAX_TRACKS)),
    "pcm": (MP4, mp4(trak(AAC, counts=struct.pack(">II", 2 * MAX_INDEXED_SAMPLES, 1)))),
    "other": (ADTS, b"\xff\xf1"),
}

BAD = {
    "webm-channels": (MATROSKA, webm(track(channels=9)), "1 to 8 channels, got 9"),
    "webm-no-channels": (MATROSKA, webm(track(channels=0)), "1 to 8 channels, got 0"),
    "webm-rate": (MATROSKA, webm(track(rate_hz=768e3)), "192000 Hz, got 768000"),
    "webm-endless": (MATROSKA, webm(track(rate_hz=float("inf"))), "Hz, got 0"),
    "opus-channels": (MATROSKA, webm(track(private=private_of(b"A_OPUS", 255, 0))), "got 255"),
    "vorbis-channels": (
        MATROSKA,
        webm(track(codec=b"A_VORBIS", private=private_of(b"A_VORBIS", 255, 8_000))),
        "got 255",
    ),
    "vorbis-rate": (
        MATROSKA,
        webm(track(codec=b"A_VORBIS", private=private_of(b"A_VORBIS", 1, 768_000))),
        "got 768000",
    ),
    "flac-rate": (
        MATROSKA,
        webm(track(codec=b"A_FLAC", private=private_of(b"A_FLAC", 1, 655_350))),
        "got 655350",
    ),
    "webm-samples": (
        MATROSKA,
        webm(track(channels=8, rate_hz=96_000.0), seconds=MOST_S),
        "8 channels at 96000 Hz exceed",
    ),
    "webm-tracks": (MATROSKA, webm(track(), *[VIDEO] * MAX_TRACKS), "more than 16 tracks"),
    "mp4-channels": (MP4, mp4(trak(entry(b"mp4a", 9, 8_000))), "1 to 8 channels, got 9"),
    "mp4-rate": (MP4, mp4(trak(entry(b"mp4a", 1, 999))), "got 999"),
    "mp4-second-version": (MP4, mp4(trak(entry(b"lpcm", 1, 768_000, version=2))), "got 768000"),
    "mp4-second-channels": (MP4, mp4(trak(entry(b"lpcm", 99, 48_000, version=2))), "got 99"),
    "mp4-opus": (
        MP4,
        mp4(trak(entry(b"Opus", 2, 48_000, box(b"dOps", b"\0\xff", bytes(9))))),
        "got 255",
    ),
    "mp4-flac": (
        MP4,
        mp4(trak(entry(b"fLaC", 2, 0, box(b"dfLa", bytes(4), private_of(b"", 2, 655_350)[4:])))),
        "got 655350",
    ),
    "mp4-alac": (
        MP4,
        mp4(trak(entry(b"alac", 2, 0, box(b"alac", bytes(13), b"\2", bytes(10), b"\0\x0b\xb8\0")))),
        "got 768000",
    ),
    "mp4-samples": (
        MP4,
        mp4(trak(entry(b"mp4a", 8, 48_000), seconds=MOST_S)),
        "8 channels at 48000 Hz exceed",
    ),
    "mp4-tracks": (MP4, mp4(*[trak(AAC)] * (MAX_TRACKS + 1)), "more than 16 tracks"),
    "mp4-frames": (
        MP4,
        mp4(trak(AAC, counts=struct.pack(">IIII", MAX_INDEXED_SAMPLES, 1024, 1, 1024))),
        f"{MAX_INDEXED_SAMPLES + 1} frames",
    ),
    "mp4-frames-of-two": (
        MP4,
        mp4(*[trak(AAC, counts=struct.pack(">II", MAX_INDEXED_SAMPLES - 9, 1024))] * 2),
        "frames in its index",
    ),
    "mp4-index": (
        MP4,
        mp4(trak(AAC), box(b"free", bytes(MAX_INDEX_BYTES))),
        f"the maximum is {MAX_INDEX_BYTES}",
    ),
    "mp4-packed": (MP4, mp4(box(b"cmov", bytes(8))), "compressed index"),
    "mp4-boxes": (MP4, mp4(trak(AAC)) + box(b"free") * 100_001, "more than 100000 boxes"),
    "mp4-bare": (MP4, mp4(trak(box(b"mp4a", bytes(8)))), "without a description"),
}


@pytest.mark.parametrize("kind", GOOD)
def test_headers_within_the_bounds_are_left_to_the_decoder(kind: str) -> None:
    container, file = GOOD[kind]
    check_muxed(file, container.name, MOST_S, COST_SAMPLES)


@pytest.mark.parametrize("kind", BAD)
def test_headers_beyond_a_bound_are_rejected(kind: str) -> None:
    container, file, said = BAD[kind]
    with pytest.raises(RejectedRecording, match=said):
        check_muxed(file, container.name, MOST_S, COST_SAMPLES)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (MATROSKA.name, webm(track(), seconds=600.0)),
        (MP4.name, mp4(trak(AAC, seconds=600.0))),
        (MP4.name, mp4(trak(AAC, seconds=600.0, wide=True))),
    ],
    ids=["webm", "mp4", "mp4-wide"],
)
def test_a_stated_duration_beyond_the_bound_is_rejected_with_it(name: str, file: bytes) -> None:
    with pytest.raises(RecordingTooLong) as caught:
        check_muxed(file, name, MOST_S, COST_SAMPLES)
    assert caught.value.seconds == 600.0


@pytest.mark.parametrize(
    ("name", "file"),
    [(MATROSKA.name, webm(track(), seconds=2.0)), (MP4.name, mp4(trak(AAC, seconds=2.0)))],
    ids=["webm", "mp4"],
)
def test_a_file_that_states_more_samples_than_its_lane_decodes_is_costly(
    name: str, file: bytes
) -> None:
    with pytest.raises(CostlyRecording):
        check_muxed(file, name, MOST_S, 10_000)
    check_muxed(file, name, MOST_S, 1_000_000)


@pytest.mark.parametrize("kind", [kind for kind in GOOD if kind != "other"])
def test_headers_that_end_early_raise_nothing_else(kind: str) -> None:
    container, file = GOOD[kind]
    for end in range(len(file)):
        with suppress(RejectedRecording):
            check_muxed(file[:end], container.name, MOST_S, COST_SAMPLES)
