"""Finds the audio tracks of a WebM or Matroska file in its headers (RFC 9559), without reading its
clusters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from antiphon_gateway.media.decoding.bounds import RejectedRecording
from antiphon_gateway.media.decoding.muxed_sound import MAX_TRACKS, File, MuxedSound

_SEGMENT, _CLUSTER, _INFO, _TRACKS, _TRACK = 0x18538067, 0x1F43B675, 0x1549A966, 0x1654AE6B, 0xAE
_SCALE, _DURATION = 0x2AD7B1, 0x4489
_KIND, _CODEC, _PRIVATE, _AUDIO = 0x83, 0x86, 0x63A2, 0xE1
_RATE, _OUTPUT_RATE, _CHANNELS = 0xB5, 0x78B5, 0x9F
_SOUND = 2
_DEFAULT_SCALE_NS, _DEFAULT_RATE_HZ = 1_000_000, 8_000
MAX_ELEMENTS = 100_000
"""The maximum total number of clusters and other elements in a file whose headers are read."""


def matroska_sounds(file: File) -> list[MuxedSound]:
    """Return the audio tracks in order. Raises `RejectedRecording` if there are too many tracks or
    elements, or if an index exceeds a limit.
    """
    tracks = 0
    seconds, sounds = 0.0, list[MuxedSound]()
    for kind, start, stop in _top_elements(file):
        if kind == _INFO:
            seconds = _seconds(file, start, stop)
        elif kind == _TRACKS:
            for child, at, end in _elements(file, start, stop):
                if child != _TRACK:
                    continue
                tracks += 1
                if tracks > MAX_TRACKS:
                    raise RejectedRecording(f"has more than {MAX_TRACKS} tracks")
                sound = _sound(file, at, end)
                if sound is not None:
                    sounds.append(sound)
    for sound in sounds:
        sound.seconds = seconds
    return sounds


def _top_elements(file: File) -> Iterator[tuple[int, int, int]]:
    """Yield the elements of all segments."""
    for count, (kind, start, stop) in enumerate(_elements(file, 0, len(file))):
        if count > MAX_ELEMENTS:
            raise RejectedRecording(f"has more than {MAX_ELEMENTS} elements")
        if kind != _SEGMENT:
            continue
        for inner, element in enumerate(_elements(file, start, stop)):
            if inner > MAX_ELEMENTS:
                raise RejectedRecording(f"has more than {MAX_ELEMENTS} elements")
            yield element


def _elements(file: File, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the ID, the start and the end of each element.

    If the size of an element is unknown, the element extends to the end of its parent. For a live
    stream, the headers are therefore read up to the first cluster.
    """
    while at < stop:
        kind, at, _ = _number(file, at, stop, keep_marker=True)
        size, at, unknown = _number(file, at, stop, keep_marker=False)
        end = stop if unknown else min(at + size, stop)
        yield kind, at, end
        at = end


def _number(file: File, at: int, stop: int, *, keep_marker: bool) -> tuple[int, int, bool]:
    """Return a variable-length number, the position of its end, and whether all of its bits are
    set. The last case indicates an unknown size.
    """
    if at >= stop or not file[at]:
        return 0, stop, False
    length = 9 - file[at].bit_length()
    value = int.from_bytes(file[at : at + length], "big")
    bits = value & (1 << 7 * length) - 1
    return value if keep_marker else bits, at + length, bits == (1 << 7 * length) - 1


def _seconds(file: File, start: int, stop: int) -> float:
    scale_ns, duration = _DEFAULT_SCALE_NS, 0.0
    for kind, at, end in _elements(file, start, stop):
        if kind == _SCALE:
            scale_ns = int.from_bytes(file[at : min(end, at + 8)], "big")
        elif kind == _DURATION:
            duration = _float(file[at:end])
    return max(duration * scale_ns / 1e9, 0.0)


def _sound(file: File, start: int, stop: int) -> MuxedSound | None:
    """Return a track if it contains audio, or None otherwise."""
    sound, kind_of_track, codec, private = MuxedSound(), 0, b"", b""
    channels, rate_hz = 1, float(_DEFAULT_RATE_HZ)
    for kind, at, end in _elements(file, start, stop):
        if kind == _KIND:
            kind_of_track = int.from_bytes(file[at : min(end, at + 8)], "big")
        elif kind == _CODEC:
            codec = file[at : min(end, at + 32)].rstrip(b"\0")
        elif kind == _PRIVATE:
            private = file[at:end]
        elif kind == _AUDIO:
            for inner, first, last in _elements(file, at, end):
                if inner == _CHANNELS:
                    channels = int.from_bytes(file[first : min(last, first + 8)], "big")
                elif inner == _RATE:
                    rate_hz = _float(file[first:last])
                elif inner == _OUTPUT_RATE:
                    sound.rates_hz.append(_whole(_float(file[first:last])))
    if kind_of_track != _SOUND:
        return None
    sound.channels.append(channels)
    sound.rates_hz.append(_whole(rate_hz))
    if codec == b"A_OPUS":
        sound.add_opus(private)
    elif codec == b"A_VORBIS":
        sound.add_vorbis(private)
    elif codec == b"A_FLAC":
        sound.add_flac(private[8:])
    return sound


def _float(data: bytes) -> float:
    """Return a float of 4 or 8 bytes, or 0 if it is missing or not a number."""
    kind = {4: ">f", 8: ">d"}.get(len(data))
    value = struct.unpack(kind, data)[0] if kind else 0.0
    return value if abs(value) < float("inf") else 0.0


def _whole(rate_hz: float) -> int:
    return round(rate_hz)
