"""Finds the audio tracks of an MP4, M4A or 3GP file in its index (`moov`), without reading its
samples.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from antiphon_gateway.media.decoding.bounds import RejectedRecording
from antiphon_gateway.media.decoding.muxed_sound import MAX_TRACKS, File, MuxedSound

MAX_INDEX_BYTES = 16 << 20
"""The maximum size of an index in bytes. For an hour of AAC, the index takes up about 1 MB."""
MAX_INDEXED_SAMPLES = 8_000_000
"""The maximum number of frames that the tables of all tracks together can declare. FFmpeg needs at
least 24 bytes for each of them.
"""
MAX_BOXES = 100_000
_CONTAINERS = frozenset({b"moov", b"trak", b"mdia", b"minf", b"stbl"})
_ENTRY_HEAD_BYTES = 8 + 28
"""The size of a version 0 audio sample entry, including its box header."""


def mp4_sounds(file: File) -> list[MuxedSound]:
    """Return the audio tracks in order. Raises `RejectedRecording` if the index, the tracks, the
    boxes or the frames exceed a limit.
    """
    tracks = frames = 0
    seconds, is_sound = 0.0, False
    sounds: list[MuxedSound] = []
    for count, (kind, start, stop) in enumerate(_boxes(file)):
        if count > MAX_BOXES:
            raise RejectedRecording(f"has more than {MAX_BOXES} boxes")
        if kind == b"moov" and stop - start > MAX_INDEX_BYTES:
            raise RejectedRecording(
                f"has an index of {stop - start} bytes; the maximum is {MAX_INDEX_BYTES}"
            )
        if kind == b"cmov":
            raise RejectedRecording("has a compressed index; write the file without compressing it")
        if kind == b"trak":
            tracks, seconds, is_sound = tracks + 1, 0.0, False
            if tracks > MAX_TRACKS:
                raise RejectedRecording(f"has more than {MAX_TRACKS} tracks")
        elif kind == b"mdhd":
            seconds = _seconds(file, start, stop)
        elif kind == b"hdlr":
            is_sound = is_sound or file[start + 8 : start + 12] == b"soun"
            if file[start + 8 : start + 12] == b"soun":
                sounds.append(MuxedSound(seconds=seconds))
        elif kind == b"stsd" and is_sound and not sounds[-1].channels:
            _describe(file, start, stop, sounds[-1])
        elif kind == b"stts":
            frames += _timed(file, start, stop)
            if frames > MAX_INDEXED_SAMPLES:
                raise RejectedRecording(
                    f"has {frames} frames in its index; the maximum is {MAX_INDEXED_SAMPLES}"
                )
    return sounds


def _boxes(file: File) -> Iterator[tuple[bytes, int, int]]:
    """Yield the type, the start and the end of the content of each box, in order."""
    ends = [len(file)]
    at = 0
    while ends:
        if at + 8 > ends[-1]:
            at = ends.pop()
            continue
        size, kind, head = _number(file, at), file[at + 4 : at + 8], 8
        if size == 1 and at + 16 <= ends[-1]:
            size, head = int.from_bytes(file[at + 8 : at + 16], "big"), 16
        stop = ends[-1] if size == 0 else min(at + max(size, head), ends[-1])
        yield kind, at + head, stop
        if kind in _CONTAINERS:
            ends.append(stop)
            at += head
        else:
            at = stop


def _seconds(file: File, start: int, stop: int) -> float:
    """Return the length in a media header, or 0 if it isn't known."""
    wide = start < stop and file[start] == 1
    at, size = (start + 20, 8) if wide else (start + 12, 4)
    scale, duration = _number(file, at), int.from_bytes(file[at + 4 : at + 4 + size], "big")
    if not scale or duration == (1 << 8 * size) - 1:
        return 0.0
    return duration / scale


def _describe(file: File, start: int, stop: int, sound: MuxedSound) -> None:
    """Add the properties declared by the first sample entry."""
    entry = file[start + 8 : stop]
    entry = entry[: _number(entry, 0)]
    if len(entry) < _ENTRY_HEAD_BYTES:
        raise RejectedRecording("has an audio track without a description")
    version = int.from_bytes(entry[16:18], "big")
    if version == 2 and len(entry) >= 8 + 44:
        rate_hz = struct.unpack(">d", entry[40:48])[0]
        sound.rates_hz.append(round(rate_hz) if abs(rate_hz) < 1e9 else 0)
        sound.channels.append(_number(entry, 48))
    else:
        # Both are 0 if they are declared only in the codec's header.
        if channels := int.from_bytes(entry[24:26], "big"):
            sound.channels.append(channels)
        # The integer part of a 16.16 number.
        if rate := int.from_bytes(entry[32:34], "big"):
            sound.rates_hz.append(rate)
    for kind, at in _inner(entry):
        if kind == b"dOps" and at + 2 <= len(entry):
            sound.channels.append(entry[at + 1])
        elif kind == b"dfLa":
            sound.add_flac(entry[at + 8 :])
        elif kind == b"alac" and at + 28 <= len(entry):
            sound.channels.append(entry[at + 13])
            sound.rates_hz.append(_number(entry, at + 24))


def _inner(entry: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the type and the content of the boxes in an audio sample entry."""
    at = _ENTRY_HEAD_BYTES + {1: 16, 2: 36}.get(int.from_bytes(entry[16:18], "big"), 0)
    while at + 8 <= len(entry):
        size = _number(entry, at)
        yield entry[at + 4 : at + 8], at + 8
        at += max(size, 8)


def _timed(file: File, start: int, stop: int) -> int:
    """Return the number of frames that are declared by a run-length encoded table of durations.

    PCM has one frame per sample, and all frames have the same duration. For PCM, FFmpeg indexes
    chunks instead.
    """
    entries = min(_number(file, start + 4), max(stop - start - 8, 0) // 8)
    table = file[start + 8 : start + 8 + 8 * entries]
    pairs = list(struct.iter_unpack(">II", table))
    if len(pairs) == 1 and pairs[0][1] == 1:
        return 0
    return sum(count for count, _ in pairs)


def _number(data: File, at: int) -> int:
    """Return a number of four bytes, or 0 after the end of the data."""
    return int.from_bytes(data[at : at + 4], "big")
