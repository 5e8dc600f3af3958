"""Converts audio files from clients to mono float32 at the model's sample rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.values.chunk import Tensor
from antiphon_gateway.media.data_url import data_of_url, file_bytes
from antiphon_gateway.media.decoding.bounds import RecordingTooLong, RejectedRecording, check_sound
from antiphon_gateway.media.decoding.decoder import MediaDecoder, MissingFfmpeg
from antiphon_gateway.media.decoding.mono import BLOCK_SAMPLES
from antiphon_gateway.media.pcm_recording import PcmRecording
from antiphon_gateway.media.remote import RemoteUrl
from antiphon_gateway.media.resampling import RecordingResampler

FORMATS_IN = (
    *("wav", "mp3", "flac", "ogg", "opus", "aiff", "aif", "caf"),
    *("webm", "mkv", "mka", "weba", "mp4", "m4a", "mpeg", "mpga", "aac", "3gp", "amr"),
)
"""The names that clients can use for the format of a file. The actual format is determined by
looking at the start of the file.
"""

_MEDIA_TYPES = frozenset(
    {
        *(f"audio/{name}" for name in ("wav", "x-wav", "wave", "vnd.wave", "mpeg", "mp3", "mpga")),
        *(f"audio/{name}" for name in ("flac", "x-flac", "ogg", "opus", "aiff", "x-aiff", "x-caf")),
        *(f"audio/{name}" for name in ("webm", "x-matroska", "mp4", "m4a", "x-m4a", "mp4a-latm")),
        *(f"audio/{name}" for name in ("aac", "aacp", "x-aac", "3gpp", "3gpp2", "amr", "amr-wb")),
        # The names that browsers use for recordings in these container formats.
        *("video/webm", "video/mp4", "video/3gpp", "application/ogg"),
    }
)
FULL_SCALE = 32768.0
"""The value of 16-bit samples that corresponds to 1.0."""


@dataclass(frozen=True, slots=True)
class Recording:
    """An audio file as it was received.

    This can be bytes, base64 text, the file's location, or samples that have already been decoded.
    `field` is its path in the request.
    """

    field: str
    data: bytes | str | RemoteUrl | PcmRecording


def read_audio_url(url: str, field: str) -> Recording:
    """Return the recording that a URL contains or refers to. Raises the errors of `data_of_url`."""
    return Recording(field, data_of_url(url, "recording", _MEDIA_TYPES, field))


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """The maximum number of recordings in a request, the maximum length of each recording in
    seconds, and the maximum length of all recordings together.

    The length limits the decoded size. At a low sample rate, 1 kB can become 60 kB for the model.
    """

    recordings: int
    each_s: float
    all_s: float


def check_recordings(fields: Sequence[str], *, rate_hz: int, limits: AudioLimits) -> None:
    """Raise an error with the field if recordings aren't supported or if there are too many."""
    if fields and (not rate_hz or not limits.all_s):
        raise NotImplementedYet("this model doesn't accept audio", field=fields[0])
    if len(fields) > limits.recordings:
        field = fields[limits.recordings]
        raise InvalidArgument(
            f"{field}: the request has more than {limits.recordings} recordings", field=field
        )


async def decode_recording(
    recording: Recording,
    decoder: MediaDecoder,
    *,
    rate_hz: int,
    left_s: float,
    limits: AudioLimits,
    key: str = "",
) -> Tensor:
    """Return a mono float32 vector at `rate_hz`, which is at most `left_s` seconds long. `key` is
    the name of the caller.

    If this is cancelled, decoding ends. Raises `InvalidArgument` with the field if the recording
    exceeds a limit or can't be read, and `NotImplementedYet` if this requires a program that isn't
    installed.
    """
    field, data = recording.field, recording.data
    try:
        if isinstance(data, PcmRecording):
            check_sound(1, data.rate_hz)
            check_seconds(data.seconds, field, left_s, limits)
            return await decoder.threads.run(len(data.pcm16), _resampled_pcm, data, rate_hz)
        size = 0 if isinstance(data, RemoteUrl) else len(data)
        file = await decoder.threads.run(size, file_bytes, data, field)
        return await decoder.decode(file, rate_hz, min(limits.each_s, left_s), key)
    except RecordingTooLong as error:
        check_seconds(error.seconds, field, left_s, limits)
        raise InvalidArgument(f"{field}: is too long", field=field) from error
    except MissingFfmpeg as error:
        raise NotImplementedYet(f"{field}: {error}", field=field) from error
    except RejectedRecording as error:
        raise InvalidArgument(f"{field}: {error}", field=field) from error


def _resampled_pcm(recording: PcmRecording, rate_hz: int) -> Tensor:
    """Return the same samples that decoding a WAV file of this recording would return."""
    whole = np.frombuffer(recording.pcm16, "<i2")
    resampler = RecordingResampler(recording.rate_hz, rate_hz)
    made = []
    for start in range(0, len(whole), BLOCK_SAMPLES):
        block = whole[start : start + BLOCK_SAMPLES].astype(np.float32) / np.float32(FULL_SCALE)
        made.append(resampler.add(block, last=start + len(block) == len(whole)))
    return np.concatenate(made)


def check_seconds(seconds: float, field: str, left_s: float, limits: AudioLimits) -> None:
    """Raise an error if a recording is too long."""
    if seconds > limits.each_s:
        raise InvalidArgument(
            f"{field}: is longer than {limits.each_s:g} seconds, the maximum length of a recording",
            field=field,
        )
    if seconds > left_s:
        raise InvalidArgument(
            f"{field}: with this recording, the request has more than {limits.all_s:g} seconds "
            "of audio",
            field=field,
        )
