"""Counts the samples that an MP4 file declares. The file's boxes are read for this purpose before a
decoder opens the file.

A table that takes up only a few bytes can declare billions of frames. FFmpeg indexes all frames
when it opens a file, and reading the last visible frame would then take just as many calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.errors import InvalidArgument

MAX_VIDEO_FRAMES = 28_800
"""The limit for video tracks, which corresponds to two minutes at 240 frames per second."""

MAX_OTHER_SAMPLES = 8_000_000
"""The limit for all other tracks, which corresponds to two minutes of audio with one entry per
sample.
"""

MAX_TRACKS = 16

MAX_INDEX_BYTES = 16 << 20
"""The maximum size of the box that describes all tracks. It takes about 1 MB for two minutes of
video and audio.
"""

MAX_BOXES = 100_000
"""About three times the number of boxes in a two-minute file that has one fragment per frame."""

_CONTAINERS = frozenset({b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"})
_SIZE_TABLES = frozenset({b"stsz", b"stz2"})


@dataclass(slots=True)
class _Counts:
    """The number of samples in the current track, in the tracks before it, and in all fragments."""

    samples: int = 0
    others: int = 0
    tracks: int = 0
    is_video: bool = False
    fragments: int = 0


def check_samples(data: bytes, name: str) -> None:
    """Raise `InvalidArgument` with the field `name` if the file declares too many samples."""
    counts = _Counts()
    for boxes, (kind, start, end) in enumerate(_boxes(data, 0, len(data))):
        if boxes >= MAX_BOXES:
            raise InvalidArgument(f"{name}: has more than {MAX_BOXES} boxes", field=name)
        if kind == b"moov" and end - start > MAX_INDEX_BYTES:
            raise InvalidArgument(
                f"{name}: has an index of {end - start} bytes; the maximum is {MAX_INDEX_BYTES}",
                field=name,
            )
        if kind == b"trak":
            counts.tracks += 1
            counts.others += counts.samples
            counts.samples, counts.is_video = 0, False
        elif kind == b"cmov":
            raise InvalidArgument(f"{name}: has a compressed header", field=name)
        elif kind == b"hdlr":
            counts.is_video = data[start + 8 : start + 12] == b"vide"
        elif kind in _SIZE_TABLES:
            counts.samples = max(counts.samples, _number(data, start + 8, end))
        elif kind == b"stts":
            counts.samples = max(counts.samples, _timed(data, start, end))
        elif kind == b"trun":
            counts.fragments += _number(data, start + 4, end)
        _check(counts, name)


def _check(counts: _Counts, name: str) -> None:
    if counts.tracks > MAX_TRACKS:
        raise InvalidArgument(f"{name}: has more than {MAX_TRACKS} tracks", field=name)
    most = MAX_VIDEO_FRAMES if counts.is_video else MAX_OTHER_SAMPLES
    if (
        counts.samples > most
        or counts.samples + counts.others > MAX_OTHER_SAMPLES
        or counts.fragments > 2 * MAX_VIDEO_FRAMES
    ):
        raise InvalidArgument(
            f"{name}: has {max(counts.samples + counts.others, counts.fragments)} frames; the "
            f"maximum is {MAX_VIDEO_FRAMES}",
            field=name,
        )


def _boxes(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the type of each box and the start and end of its content. Containers come before the
    boxes that they contain.
    """
    waiting = [(at, end)]
    while waiting:
        at, end = waiting.pop()
        if end - at < 8:
            continue
        size, kind = _number(data, at, end), data[at + 4 : at + 8]
        header = 8
        if size == 1 and end - at >= 16:
            header, size = 16, int.from_bytes(data[at + 8 : at + 16], "big")
        stop = end if size == 0 else min(at + size, end)
        if size != 0 and size < header:
            continue
        yield kind, at + header, stop
        waiting.append((stop, end))
        if kind in _CONTAINERS:
            waiting.append((at + header, stop))


def _timed(data: bytes, start: int, end: int) -> int:
    """Return the number of samples in a run-length encoded table of durations."""
    entries = min(_number(data, start + 4, end), max(end - start - 8, 0) // 8)
    table = data[start + 8 : start + 8 + 8 * entries]
    return sum(count for count, _ in struct.iter_unpack(">II", table))


def _number(data: bytes, at: int, end: int) -> int:
    """Return four bytes as a number, or 0 if the box is too short."""
    return int.from_bytes(data[at : at + 4], "big") if at + 4 <= end else 0
