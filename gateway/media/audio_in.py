"""Recordings from a client: audio files to mono float32 at the model's rate."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import soundfile

from antiphon.chunk import Tensor
from antiphon.conversation import recording_key
from antiphon.errors import InvalidArgument, NotImplementedYet
from gateway.media.data_url import data_of_url, file_bytes
from gateway.media.mp3 import has_more_than
from gateway.media.pcm_recording import PcmRecording
from gateway.media.remote import RemoteUrl
from gateway.media.resampling import RecordingResampler
from gateway.media.sent_recordings import SentRecordings, name_of

# libsndfile's names of what there may be in a file of each format. Of WAV what has one sample
# after the other: libsndfile cannot seek in some of the others, and decodes them by guessing how
# long they are.
ENCODINGS: Mapping[str, Mapping[str, str]] = {
    "wav": {
        "PCM_U8": "PCM",
        "PCM_16": "PCM",
        "PCM_24": "PCM",
        "PCM_32": "PCM",
        "FLOAT": "float",
        "DOUBLE": "float",
        "ALAW": "A-law",
        "ULAW": "mu-law",
    },
    "mp3": dict.fromkeys(("MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III"), "MPEG"),
    "flac": dict.fromkeys(("PCM_S8", "PCM_16", "PCM_24"), "PCM"),
    "ogg": {"VORBIS": "Vorbis", "OPUS": "Opus"},
}
FORMATS_IN = (*ENCODINGS, "opus")
"""What a client may call its file; Opus comes in Ogg."""
ANY_FORMAT = ""

_NAMES = {
    "wav": "a WAV file",
    "mp3": "an MP3 file",
    "flac": "a FLAC file",
    "ogg": "an Ogg file",
    "opus": "an Ogg file",
    ANY_FORMAT: "a WAV, MP3, FLAC or Ogg file",
}

# What a file is shows at its beginning; its type need only be one of audio.
_MEDIA_TYPES = frozenset(
    f"audio/{name}"
    for name in ["wav", "x-wav", "wave", "vnd.wave", "mpeg", "mp3", "flac", "x-flac", "ogg", "opus"]
)
_CONTAINERS = {
    "WAV": "wav",
    "WAVEX": "wav",
    "RF64": "wav",
    "MP3": "mp3",
    "FLAC": "flac",
    "OGG": "ogg",
}
# More than an encoder's delay, a header's frame and the padding of the last one.
_MP3_SPARE_SAMPLES = 5 * 1152
# What libsndfile says of a FLAC stream whose header leaves its length open.
_UNKNOWN_FRAMES = (1 << 63) - 1
MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000
LOUDEST = 2.0**31
FULL_SCALE = 32768.0
"""Of 16-bit samples."""
BLOCK_SAMPLES = 1 << 16
"""Of all channels together: how much is decoded before it becomes mono and is resampled."""


@dataclass(frozen=True, slots=True)
class Recording:
    """An audio file as it came: bytes, base64 text, or where it is; or samples that are decoded
    already. `field` is its path.

    `format` is what its client calls a file, one of `FORMATS_IN` or `ANY_FORMAT`.
    """

    field: str
    data: bytes | str | RemoteUrl | PcmRecording
    format: str = "wav"


def read_audio_url(url: str, field: str) -> Recording:
    """The recording that a URL brings or names. Raises what `data_of_url` raises."""
    return Recording(field, data_of_url(url, "recording", _MEDIA_TYPES, field), ANY_FORMAT)


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """How many recordings a request may have, and the seconds of each and of all together.

    A file's seconds say what becomes of it: 1 kB of a low rate can be 60 kB for the model.
    """

    recordings: int
    each_s: float
    all_s: float


def check_recordings(recordings: Sequence[Recording], *, rate_hz: int, limits: AudioLimits) -> None:
    """Raise with the field for recordings where none are taken, or so many are not."""
    if recordings and (not rate_hz or not limits.all_s):
        raise NotImplementedYet("this model takes no audio input", field=recordings[0].field)
    if len(recordings) > limits.recordings:
        field = recordings[limits.recordings].field
        raise InvalidArgument(
            f"{field}: more than {limits.recordings} recordings in the request", field=field
        )


def decode_recordings(
    recordings: Sequence[Recording],
    *,
    rate_hz: int,
    limits: AudioLimits,
    taken_s: float = 0.0,
    sent: SentRecordings | None = None,
) -> tuple[Tensor, ...]:
    """Mono float32 vectors at `rate_hz`, or the keys of those that were `sent` before. Others of
    the request have taken `taken_s` of the limit.

    Takes long: call it off the event loop. Never holds more than the files, what comes of
    them within the limits, and a block. Raises `InvalidArgument` with the field of the
    recording that is at fault.
    """
    check_recordings(recordings, rate_hz=rate_hz, limits=limits)
    decoded: list[Tensor] = []
    left_s = limits.all_s - taken_s
    for recording in recordings:
        if sent is None or not isinstance(recording.data, bytes | PcmRecording):
            decoded.append(_decode(recording, rate_hz, left_s, limits))
            left_s -= len(decoded[-1]) / rate_hz
            continue
        name = name_of(recording.field, recording.data)
        if (known := sent.find(name)) is None:
            known = _decode(recording, rate_hz, left_s, limits)
            sent.note(name, recording_key(known), len(known))
        seconds = sent.length(known) / rate_hz
        _check_seconds(seconds, recording.field, left_s, limits)
        decoded.append(known)
        left_s -= seconds
    return tuple(decoded)


def _decode(recording: Recording, rate_hz: int, left_s: float, limits: AudioLimits) -> Tensor:
    """One recording, checked."""
    field = recording.field
    if isinstance(recording.data, PcmRecording):
        return _resampled_pcm(recording.data, field, rate_hz, left_s, limits)
    data = file_bytes(recording.data, field)
    most_s = min(limits.each_s, left_s)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check_header(file, recording)
            if endless := file.frames >= _UNKNOWN_FRAMES:
                # Or soundfile would seek in it, which cannot be done.
                file._info.seekable = 0
            else:
                _check_seconds(file.frames / file.samplerate, field, left_s, limits)
            if file.format == "MP3":
                _check_length(file, data, field)
            frames = int((most_s + 0.1) * file.samplerate) if endless else file.frames
            samples = np.concatenate(tuple(_resampled(file, frames, field, rate_hz)))
    except soundfile.LibsndfileError as error:
        raise InvalidArgument(
            f"{field}: is not {_NAMES[recording.format]}: {error.error_string}", field=field
        ) from error
    if not len(samples):
        raise InvalidArgument(f"{field}: has no samples", field=field)
    if endless:
        # Resampling may round up by a sample.
        _check_seconds((len(samples) - 1) / rate_hz, field, left_s, limits)
    return samples


def _resampled_pcm(
    recording: PcmRecording, field: str, rate_hz: int, left_s: float, limits: AudioLimits
) -> Tensor:
    """What a WAV file of the samples would be decoded to."""
    _check_rate(recording.rate_hz, field)
    _check_seconds(recording.seconds, field, left_s, limits)
    whole = np.frombuffer(recording.pcm16, "<i2")
    resampler = RecordingResampler(recording.rate_hz, rate_hz)
    made = []
    for start in range(0, len(whole), BLOCK_SAMPLES):
        block = whole[start : start + BLOCK_SAMPLES].astype(np.float32) / np.float32(FULL_SCALE)
        made.append(resampler.add(block, last=start + len(block) == len(whole)))
    return np.concatenate(made)


def _resampled(file: soundfile.SoundFile, left: int, field: str, rate_hz: int) -> Iterator[Tensor]:
    """At most so many frames of the file block by block as mono at `rate_hz`; together what
    resampling it at once gives."""
    resampler = RecordingResampler(file.samplerate, rate_hz)
    size = max(1, BLOCK_SAMPLES // file.channels)
    while left > 0:
        block = file.read(min(size, left), dtype="float32", always_2d=True)
        # Not NaN either. Float files hold -1 to 1 or the integers of another width.
        if len(block) and not np.abs(block).max() <= LOUDEST:
            raise InvalidArgument(
                f"{field}: has samples that are NaN, infinite or beyond {LOUDEST:g}", field=field
            )
        left = left - len(block) if len(block) else 0
        yield resampler.add(block.mean(axis=1, dtype=np.float32), last=not left)


def _check_length(file: soundfile.SoundFile, data: bytes, field: str) -> None:
    """Raise for an MP3 file that has more than libsndfile would read of it.

    Without a header it takes the first frame's rate for that of all.
    """
    if has_more_than(data, file.frames + _MP3_SPARE_SAMPLES):
        raise InvalidArgument(
            f"{field}: is MP3 of a variable rate without a header that says how long it is; "
            "write one (Xing), or use a constant rate",
            field=field,
        )


def _check_header(file: soundfile.SoundFile, recording: Recording) -> None:
    """Raise unless it is of its format, of a possible rate and not empty."""
    field, wanted = recording.field, "ogg" if recording.format == "opus" else recording.format
    name = _CONTAINERS.get(file.format, "")
    if not name or name != (wanted or name):
        raise InvalidArgument(f"{field}: must be {_NAMES[wanted]}, is {file.format}", field=field)
    if file.subtype not in ENCODINGS[name]:
        known = ", ".join(dict.fromkeys(ENCODINGS[name].values()))
        raise InvalidArgument(
            f"{field}: {_NAMES[name]} with {file.subtype} is not read; there are: {known}",
            field=field,
        )
    _check_rate(file.samplerate, field)
    if file.frames <= 0:
        raise InvalidArgument(f"{field}: has no samples", field=field)


def _check_rate(rate_hz: int, field: str) -> None:
    """Raise for a rate that no recording has."""
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise InvalidArgument(
            f"{field}: must have {MIN_RATE_HZ} to {MAX_RATE_HZ} samples a second, has {rate_hz}",
            field=field,
        )


def _check_seconds(seconds: float, field: str, left_s: float, limits: AudioLimits) -> None:
    """Raise for a recording that is too long."""
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
