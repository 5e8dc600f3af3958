"""Decodes files that libsndfile can read. This runs in a child process."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

import numpy as np
import soundfile

from antiphon_gateway.media.decoding.bounds import (
    SPARE_S,
    RecordingTooLong,
    RejectedRecording,
    check_cost,
    check_frames,
    check_sound,
    most_samples,
    too_many_samples,
)
from antiphon_gateway.media.decoding.mono import mono_blocks
from antiphon_gateway.media.mp3 import has_more_than

# libsndfile's names for container formats, and for the encodings in them. If libsndfile can't seek
# in an encoding, it guesses the length, so these encodings are left out.
_PCM = ("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW")
_ENCODINGS: Mapping[str, tuple[str, ...]] = {
    "MP3": ("MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III"),
    "FLAC": ("PCM_S8", "PCM_16", "PCM_24"),
    "OGG": ("VORBIS", "OPUS"),
    "AIFF": _PCM,
    "CAF": (*_PCM, "ALAC_16", "ALAC_20", "ALAC_24", "ALAC_32"),
}
# An upper bound for the sum of an encoder's delay, the header frame, and the padding of the last
# frame.
_MP3_SPARE_SAMPLES = 5 * 1152
# The value that libsndfile reports if the header of a FLAC stream doesn't contain its length.
_UNKNOWN_FRAMES = (1 << 63) - 1


def decode_sound_file(
    source: int, name: str, rate_hz: int, most_s: float, cost_samples: int, out: int
) -> None:
    """Write a file's samples to the descriptor `out`, as mono float32 at `rate_hz`.

    The file is given by the descriptor `source` and is read in place without being copied. Raises
    `RejectedRecording` if the file exceeds the limits. If possible, this is determined from the
    header, before any samples are decoded. Raises `CostlyRecording` if a header declares more than
    `cost_samples` samples.
    """
    try:
        with soundfile.SoundFile(source, closefd=False) as file:
            _check_encoding(file, name)
            check_sound(file.channels, file.samplerate)
            if file.frames < _UNKNOWN_FRAMES:
                check_frames(file.frames, file.channels, file.samplerate, most_s)
                check_cost(file.frames * file.channels, cost_samples)
                if file.format == "MP3":
                    _check_length(file, source)
                _write(file, file.frames, rate_hz, out)
            else:
                # Otherwise, soundfile would try to seek in the file, which isn't possible.
                file._info.seekable = 0
                _write_unknown(file, rate_hz, most_s, out)
    except soundfile.LibsndfileError as error:
        raise RejectedRecording(f"can't be read as {name}: {error.error_string}") from error


def _write(file: soundfile.SoundFile, frames: int, rate_hz: int, out: int) -> int:
    """Decode up to `frames` frames. Returns the number of samples that were written."""
    written = 0
    for block in mono_blocks(file, frames, rate_hz):
        rest = memoryview(np.ascontiguousarray(block, np.float32).tobytes())
        written += len(block)
        while rest:
            rest = rest[os.write(out, rest) :]
    return written


def _write_unknown(file: soundfile.SoundFile, rate_hz: int, most_s: float, out: int) -> None:
    """Decode a file of unknown length up to its limit and slightly beyond it."""
    allowed = most_samples(most_s) // file.channels
    longest = int((most_s + SPARE_S) * file.samplerate)
    written = _write(file, min(allowed + 1, longest), rate_hz, out)
    # Resampling can round up by one sample.
    if (seconds := (written - 1) / rate_hz) > most_s:
        raise RecordingTooLong(seconds)
    if file.tell() > allowed:
        raise too_many_samples(file.channels, file.samplerate, most_s)


def _check_encoding(file: soundfile.SoundFile, name: str) -> None:
    if file.subtype not in (known := _ENCODINGS.get(file.format, ())):
        raise RejectedRecording(
            f"is a {name} file with the encoding {file.subtype}, which is not supported; use "
            f"one of: {', '.join(known)}"
        )


def _check_length(file: soundfile.SoundFile, source: int) -> None:
    """Raise an error if an MP3 file contains more than libsndfile would read.

    Without a header, libsndfile assumes that all frames have the same bit rate as the first one.
    """
    with mmap.mmap(source, 0, access=mmap.ACCESS_READ) as data:
        longer = has_more_than(data, file.frames + _MP3_SPARE_SAMPLES)
    if longer:
        raise RejectedRecording(
            "is an MP3 file with a variable bit rate, but without a header that specifies its "
            "length; add a Xing header, or use a constant bit rate"
        )
