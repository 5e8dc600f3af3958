"""Recordings from a client: any WAV file to mono float32 at the model's rate."""

from __future__ import annotations

import binascii
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pybase64
import soundfile
import soxr

from antiphon.chunk import Tensor
from antiphon.errors import InvalidArgument, NotImplementedYet

WAV_FORMATS = frozenset({"WAV", "WAVEX", "RF64"})
MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000


@dataclass(frozen=True, slots=True)
class Recording:
    """A WAV file as it came: bytes, or base64 text. `field` is its path in the request."""

    field: str
    wav: bytes | str


def decode_recordings(
    recordings: Sequence[Recording], *, rate_hz: int, max_s: float
) -> tuple[Tensor, ...]:
    """Mono float32 vectors at `rate_hz`, together at most `max_s` seconds long.

    Takes long: call it off the event loop. Raises `InvalidArgument` with the
    field of the recording that is at fault.
    """
    if recordings and (not rate_hz or not max_s):
        raise NotImplementedYet("this model takes no audio input", field=recordings[0].field)
    decoded: list[Tensor] = []
    left_s = max_s
    for recording in recordings:
        samples = _decode(recording, rate_hz, left_s, max_s)
        left_s -= len(samples) / rate_hz
        decoded.append(samples)
    return tuple(decoded)


def _decode(recording: Recording, rate_hz: int, left_s: float, max_s: float) -> Tensor:
    """One recording, checked."""
    field = recording.field
    data = recording.wav if isinstance(recording.wav, bytes) else _from_base64(recording)
    if not data:
        raise InvalidArgument(f"{field}: is empty", field=field)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_header(file, field, left_s, max_s)
            samples = file.read(dtype="float32", always_2d=True)
            source_hz: int = file.samplerate
    except soundfile.LibsndfileError as error:
        raise InvalidArgument(
            f"{field}: is not a WAV file: {error.error_string}", field=field
        ) from error
    if not np.isfinite(samples).all():
        raise InvalidArgument(f"{field}: has samples that are NaN or infinite", field=field)
    mono = samples.mean(axis=1, dtype=np.float32)
    resampled: Tensor = soxr.resample(mono, source_hz, rate_hz)
    if not len(resampled):
        raise InvalidArgument(f"{field}: has no samples", field=field)
    return np.ascontiguousarray(resampled, dtype=np.float32)


def _check_header(file: soundfile.SoundFile, field: str, left_s: float, max_s: float) -> None:
    """Raise unless it is a WAV file of a possible rate that is not empty or too long."""
    if file.format not in WAV_FORMATS:
        raise InvalidArgument(f"{field}: must be a WAV file, is {file.format}", field=field)
    if not MIN_RATE_HZ <= file.samplerate <= MAX_RATE_HZ:
        raise InvalidArgument(
            f"{field}: must have {MIN_RATE_HZ} to {MAX_RATE_HZ} samples a second, "
            f"has {file.samplerate}",
            field=field,
        )
    if not file.frames:
        raise InvalidArgument(f"{field}: has no samples", field=field)
    if file.frames / file.samplerate > left_s:
        raise InvalidArgument(
            f"{field}: makes more than {max_s:g} seconds of audio in the request", field=field
        )


def _from_base64(recording: Recording) -> bytes:
    try:
        return pybase64.b64decode(recording.wav, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(
            f"{recording.field}: is not base64: {error}", field=recording.field
        ) from error
