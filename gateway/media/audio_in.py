"""Recordings from a client: any WAV file to mono float32 at the model's rate."""

from __future__ import annotations

import binascii
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pybase64
import soundfile
import soxr

from antiphon.chunk import Tensor
from antiphon.errors import InvalidArgument, NotImplementedYet

WAV_FORMATS = frozenset({"WAV", "WAVEX", "RF64"})
# What has one sample after the other. libsndfile cannot seek in some of the others, and
# decodes them by guessing how long they are.
ENCODINGS = {
    "PCM_U8": "PCM",
    "PCM_16": "PCM",
    "PCM_24": "PCM",
    "PCM_32": "PCM",
    "FLOAT": "float",
    "DOUBLE": "float",
    "ALAW": "A-law",
    "ULAW": "mu-law",
}
MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000
LOUDEST = 2.0**31
BLOCK_SAMPLES = 1 << 16
"""Of all channels together: how much is decoded before it becomes mono and is resampled."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A WAV file as it came: bytes, or base64 text. `field` is its path in the request."""

    field: str
    wav: bytes | str


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """How many recordings a request may have, and the seconds of each and of all together.

    A file's seconds say what becomes of it: 1 kB of a low rate can be 60 kB for the model.
    """

    recordings: int
    each_s: float
    all_s: float


def decode_recordings(
    recordings: Sequence[Recording], *, rate_hz: int, limits: AudioLimits, taken_s: float = 0.0
) -> tuple[Tensor, ...]:
    """Mono float32 vectors at `rate_hz`. Others of the request have taken `taken_s` of the limit.

    Takes long: call it off the event loop. Never holds more than the files, what comes of
    them within the limits, and a block. Raises `InvalidArgument` with the field of the
    recording that is at fault.
    """
    if recordings and (not rate_hz or not limits.all_s):
        raise NotImplementedYet("this model takes no audio input", field=recordings[0].field)
    if len(recordings) > limits.recordings:
        field = recordings[limits.recordings].field
        raise InvalidArgument(
            f"{field}: more than {limits.recordings} recordings in the request", field=field
        )
    decoded: list[Tensor] = []
    left_s = limits.all_s - taken_s
    for recording in recordings:
        samples = _decode(recording, rate_hz, left_s, limits)
        left_s -= len(samples) / rate_hz
        decoded.append(samples)
    return tuple(decoded)


def _decode(recording: Recording, rate_hz: int, left_s: float, limits: AudioLimits) -> Tensor:
    """One recording, checked."""
    field = recording.field
    data = recording.wav if isinstance(recording.wav, bytes) else _from_base64(recording)
    if not data:
        raise InvalidArgument(f"{field}: is empty", field=field)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_header(file, field, left_s, limits)
            samples = np.concatenate(tuple(_resampled(file, field, rate_hz)))
    except soundfile.LibsndfileError as error:
        raise InvalidArgument(
            f"{field}: is not a WAV file: {error.error_string}", field=field
        ) from error
    if not len(samples):
        raise InvalidArgument(f"{field}: has no samples", field=field)
    return samples


def _resampled(file: soundfile.SoundFile, field: str, rate_hz: int) -> Iterator[Tensor]:
    """The file block by block as mono at `rate_hz`; together what resampling it at once gives."""
    stream = soxr.ResampleStream(file.samplerate, rate_hz, 1, dtype="float32")
    size = max(1, BLOCK_SAMPLES // file.channels)
    left = file.frames
    while left > 0:
        block = file.read(min(size, left), dtype="float32", always_2d=True)
        # Not NaN either. Float files hold -1 to 1 or the integers of another width.
        if len(block) and not np.abs(block).max() <= LOUDEST:
            raise InvalidArgument(
                f"{field}: has samples that are NaN, infinite or beyond {LOUDEST:g}", field=field
            )
        left = left - len(block) if len(block) else 0
        mono = block.mean(axis=1, dtype=np.float32)
        yield mono if file.samplerate == rate_hz else stream.resample_chunk(mono, last=not left)


def _check_header(
    file: soundfile.SoundFile, field: str, left_s: float, limits: AudioLimits
) -> None:
    """Raise unless it is a WAV file of a possible rate that is not empty or too long."""
    if file.format not in WAV_FORMATS:
        raise InvalidArgument(f"{field}: must be a WAV file, is {file.format}", field=field)
    if file.subtype not in ENCODINGS:
        known = ", ".join(dict.fromkeys(ENCODINGS.values()))
        raise InvalidArgument(
            f"{field}: a WAV file of {file.subtype} is not read; there are: {known}", field=field
        )
    if not MIN_RATE_HZ <= file.samplerate <= MAX_RATE_HZ:
        raise InvalidArgument(
            f"{field}: must have {MIN_RATE_HZ} to {MAX_RATE_HZ} samples a second, "
            f"has {file.samplerate}",
            field=field,
        )
    if file.frames <= 0:
        raise InvalidArgument(f"{field}: has no samples", field=field)
    seconds = file.frames / file.samplerate
    if seconds > limits.each_s:
        raise InvalidArgument(
            f"{field}: is {seconds:.1f} seconds long; a recording may have {limits.each_s:g}",
            field=field,
        )
    if seconds > left_s:
        raise InvalidArgument(
            f"{field}: makes more than {limits.all_s:g} seconds of audio in the request",
            field=field,
        )


def _from_base64(recording: Recording) -> bytes:
    try:
        return pybase64.b64decode(recording.wav, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(
            f"{recording.field}: is not base64: {error}", field=recording.field
        ) from error
