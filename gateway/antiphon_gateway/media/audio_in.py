"""Recordings from a client: audio files to mono float32 at the model's rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.chunk import Tensor
from antiphon.conversation import recording_key
from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon_gateway.media.data_url import data_of_url, file_bytes
from antiphon_gateway.media.decoding.bounds import RecordingTooLong, RejectedRecording, check_sound
from antiphon_gateway.media.decoding.decoder import MediaDecoder, MissingFfmpeg
from antiphon_gateway.media.decoding.mono import BLOCK_SAMPLES
from antiphon_gateway.media.pcm_recording import PcmRecording
from antiphon_gateway.media.remote import RemoteUrl
from antiphon_gateway.media.resampling import RecordingResampler
from antiphon_gateway.media.sent_recordings import RecordingName, SentRecordings, name_of
from antiphon_gateway.threads import SMALL_BYTES

FORMATS_IN = (
    *("wav", "mp3", "flac", "ogg", "opus", "aiff", "aif", "caf"),
    *("webm", "mkv", "mka", "weba", "mp4", "m4a", "mpeg", "mpga", "aac", "3gp", "amr"),
)
"""What a client may call its file. What the file is shows at its beginning."""

_MEDIA_TYPES = frozenset(
    {
        *(f"audio/{name}" for name in ("wav", "x-wav", "wave", "vnd.wave", "mpeg", "mp3", "mpga")),
        *(f"audio/{name}" for name in ("flac", "x-flac", "ogg", "opus", "aiff", "x-aiff", "x-caf")),
        *(f"audio/{name}" for name in ("webm", "x-matroska", "mp4", "m4a", "x-m4a", "mp4a-latm")),
        *(f"audio/{name}" for name in ("aac", "aacp", "x-aac", "3gpp", "3gpp2", "amr", "amr-wb")),
        # As browsers name recordings in these containers.
        *("video/webm", "video/mp4", "video/3gpp", "application/ogg"),
    }
)
FULL_SCALE = 32768.0
"""Of 16-bit samples."""


@dataclass(frozen=True, slots=True)
class Recording:
    """An audio file as it came: bytes, base64 text, or where it is; or samples that are decoded
    already. `field` is its path."""

    field: str
    data: bytes | str | RemoteUrl | PcmRecording


def read_audio_url(url: str, field: str) -> Recording:
    """The recording that a URL brings or names. Raises what `data_of_url` raises."""
    return Recording(field, data_of_url(url, "recording", _MEDIA_TYPES, field))


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


async def decode_recordings(
    recordings: Sequence[Recording],
    decoder: MediaDecoder,
    *,
    rate_hz: int,
    limits: AudioLimits,
    taken_s: float = 0.0,
    sent: SentRecordings | None = None,
    key: str = "",
) -> tuple[Tensor, ...]:
    """Mono float32 vectors at `rate_hz`, or the keys of those that were `sent` before. Others of
    the request have taken `taken_s` of the limit; `key` is the name of who asks.

    Cancelling ends the decoding. Raises `InvalidArgument` with the field of the recording that is
    at fault, and `NotImplementedYet` for one that needs a program which is not installed.
    """
    check_recordings(recordings, rate_hz=rate_hz, limits=limits)
    decoded: list[Tensor] = []
    left_s = limits.all_s - taken_s
    for recording in recordings:
        if sent is None or not isinstance(recording.data, bytes | PcmRecording):
            decoded.append(await _decode(recording, decoder, rate_hz, left_s, limits, key))
            left_s -= len(decoded[-1]) / rate_hz
            continue
        name = await _name(recording.field, recording.data, decoder)
        if (known := sent.find(name)) is None:
            known = await _decode(recording, decoder, rate_hz, left_s, limits, key)
            digest = await decoder.threads.run(known.nbytes, recording_key, known)
            sent.note(name, digest, len(known))
        seconds = sent.length(known) / rate_hz
        _check_seconds(seconds, recording.field, left_s, limits)
        decoded.append(known)
        left_s -= seconds
    return tuple(decoded)


async def _name(field: str, data: bytes | PcmRecording, decoder: MediaDecoder) -> RecordingName:
    """The recording's name; a large file's is found on a thread."""
    if isinstance(data, PcmRecording) or len(data) <= SMALL_BYTES:
        return name_of(field, data)
    return await decoder.threads.run(len(data), name_of, field, data)


async def _decode(
    recording: Recording,
    decoder: MediaDecoder,
    rate_hz: int,
    left_s: float,
    limits: AudioLimits,
    key: str,
) -> Tensor:
    """One recording, checked."""
    field, data = recording.field, recording.data
    try:
        if isinstance(data, PcmRecording):
            check_sound(1, data.rate_hz)
            _check_seconds(data.seconds, field, left_s, limits)
            return await decoder.threads.run(len(data.pcm16), _resampled_pcm, data, rate_hz)
        size = 0 if isinstance(data, RemoteUrl) else len(data)
        file = await decoder.threads.run(size, file_bytes, data, field)
        return await decoder.decode(file, rate_hz, min(limits.each_s, left_s), key)
    except RecordingTooLong as error:
        _check_seconds(error.seconds, field, left_s, limits)
        raise InvalidArgument(f"{field}: is too long", field=field) from error
    except MissingFfmpeg as error:
        raise NotImplementedYet(f"{field}: {error}", field=field) from error
    except RejectedRecording as error:
        raise InvalidArgument(f"{field}: {error}", field=field) from error


def _resampled_pcm(recording: PcmRecording, rate_hz: int) -> Tensor:
    """What a WAV file of the samples would be decoded to."""
    whole = np.frombuffer(recording.pcm16, "<i2")
    resampler = RecordingResampler(recording.rate_hz, rate_hz)
    made = []
    for start in range(0, len(whole), BLOCK_SAMPLES):
        block = whole[start : start + BLOCK_SAMPLES].astype(np.float32) / np.float32(FULL_SCALE)
        made.append(resampler.add(block, last=start + len(block) == len(whole)))
    return np.concatenate(made)


def _check_seconds(seconds: float, field: str, left_s: float, limits: AudioLimits) -> None:
    """Raise for a recording that is too long."""
    if seconds > limits.each_s:
        raise InvalidArgument(
            f"{field}: is longer than {limits.each_s:g} seconds, the most of a recording",
            field=field,
        )
    if seconds > left_s:
        raise InvalidArgument(
            f"{field}: makes more than {limits.all_s:g} seconds of audio in the request",
            field=field,
        )
