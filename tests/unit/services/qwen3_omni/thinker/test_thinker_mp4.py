"""The bound on an MP4 file's samples, which needs no decoder."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidArgument
from antiphon_services.thinker.mp4 import MAX_BOXES, MAX_INDEX_BYTES, MAX_TRACKS, check_samples

MOST = 28_800  # two minutes at 240 frames a second
HEAD = b"\x00\x00\x00\x10ftypisom\x00\x00\x00\x00"


def box(kind: bytes, *content: bytes) -> bytes:
    joined = b"".join(content)
    return struct.pack(">I4s", 8 + len(joined), kind) + joined


def large_box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4sQ", 1, kind, 16 + len(content)) + content


def sizes(count: int, kind: bytes = b"stsz") -> bytes:
    return box(kind, struct.pack(">III", 0, 1, count))


def times(*runs: int) -> bytes:
    entries = b"".join(struct.pack(">II", count, 1) for count in runs)
    return box(b"stts", struct.pack(">II", 0, len(runs)), entries)


def track(table: bytes, handler: bytes = b"vide") -> bytes:
    named = box(b"hdlr", bytes(8), handler, bytes(12))
    return box(b"trak", box(b"mdia", named, box(b"minf", box(b"stbl", table))))


def file(*tracks: bytes) -> bytes:
    return HEAD + box(b"mdat", bytes(100)) + box(b"moov", *tracks)


def run(count: int) -> bytes:
    return box(b"moof", box(b"traf", box(b"trun", struct.pack(">II", 0, count))))


@pytest.mark.parametrize(
    "data",
    [
        file(track(sizes(MOST))),
        file(track(times(MOST - 1, 1))),
        file(track(sizes(MOST)), track(sizes(5_760_000), b"soun")),
        HEAD + large_box(b"moov", track(sizes(MOST))),
        file() + run(MOST) + run(MOST),
        HEAD,
        b"",
    ],
)
def test_file_passes_when_it_has_no_more_than_the_most(data: bytes) -> None:
    check_samples(data, "video.0")


@pytest.mark.parametrize(
    "data",
    [
        file(track(sizes(MOST + 1))),
        file(track(sizes(MOST + 1, b"stz2"))),
        file(track(sizes(1)), track(sizes(1 << 31))),
        file(track(sizes(1) + times(MOST, 1))),
        file(track(times(*[1 << 30] * 8))),
        file(track(sizes(1 << 31), b"soun")),
        HEAD + large_box(b"moov", track(sizes(MOST + 1))),
        file() + run(1 << 31),
        file() + run(MOST) + run(MOST) + run(1),
        HEAD + box(b"moov", box(b"cmov", bytes(8))),
        HEAD + box(b"free") * (MAX_BOXES + 1),
    ],
)
def test_file_is_refused_when_its_header_tells_of_very_many_frames(data: bytes) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_samples(data, "video.0")
    assert raised.value.field == "video.0"


@given(st.binary(max_size=64), st.integers(0, 300), st.binary(max_size=16))
def test_any_bytes_are_counted_or_refused(noise: bytes, at: int, other: bytes) -> None:
    whole = file(track(sizes(3)), track(times(2, 3)))
    for data in (noise, HEAD + noise, whole[:at] + other + whole[at + len(other) :]):
        with contextlib.suppress(InvalidArgument):
            check_samples(data, "video.0")


def test_samples_of_all_tracks_are_counted_together() -> None:
    half = track(sizes(5_000_000), b"soun")
    check_samples(file(half), "video")
    with pytest.raises(InvalidArgument, match="10000000 frames") as refused:
        check_samples(file(half, half), "video")
    assert refused.value.field == "video"


def test_tracks_are_bounded() -> None:
    one = track(sizes(1), b"soun")
    check_samples(file(*[one] * MAX_TRACKS), "video")
    with pytest.raises(InvalidArgument, match="more than 16 tracks"):
        check_samples(file(*[one] * (MAX_TRACKS + 1)), "video")


def test_the_index_is_bounded() -> None:
    free = box(b"free", bytes(MAX_INDEX_BYTES - 8))
    check_samples(HEAD + box(b"moov", free), "video")
    with pytest.raises(InvalidArgument, match="has an index of"):
        check_samples(HEAD + box(b"moov", free + b"x"), "video")
