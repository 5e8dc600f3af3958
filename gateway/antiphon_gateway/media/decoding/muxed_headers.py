"""Checks what a file's headers declare before FFmpeg opens the file.

A parser yields a `MuxedSound` for each audio track. The check runs in the child process, within its
limits on CPU time and memory. Since a header can be wrong, what FFmpeg does afterwards is limited
as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon_gateway.media.decoding.bounds import (
    RecordingTooLong,
    check_cost,
    check_sound,
    most_samples,
    too_many_samples,
)
from antiphon_gateway.media.decoding.containers import MATROSKA, MP4
from antiphon_gateway.media.decoding.matroska import matroska_sounds
from antiphon_gateway.media.decoding.mp4 import mp4_sounds
from antiphon_gateway.media.decoding.muxed_sound import File, MuxedSound

SPARE_HEADER_S = 1.0
"""The number of seconds by which a recording can exceed its limit according to its header. The
declared length includes the encoder's delay and padding and covers all tracks in the file.
"""

_OPUS_RATE_HZ = 48_000

_PARSERS: Mapping[str, Callable[[File], list[MuxedSound]]] = {
    MATROSKA.name: matroska_sounds,
    MP4.name: mp4_sounds,
}


def check_muxed(file: File, name: str, most_s: float, cost_samples: int) -> None:
    """Check the first audio track of a file that can be up to `most_s` seconds long. `name` is the
    name of the container.

    Raises `RejectedRecording` if the channels, the sample rate, the length, the tracks or the index
    exceed a limit, and `CostlyRecording` if there are more than `cost_samples` samples. Properties
    that aren't declared in a header aren't checked. Containers without a header (AAC and AMR)
    aren't checked either. If a file has no audio track, FFmpeg rejects it.
    """
    parse = _PARSERS.get(name)
    if parse is None:
        return
    sounds = parse(file)
    if not sounds:
        return
    sound = sounds[0]
    for channels in sound.channels or [1]:
        for rate_hz in sound.rates_hz or [_OPUS_RATE_HZ]:
            check_sound(channels, rate_hz)
    if sound.seconds > most_s + SPARE_HEADER_S:
        raise RecordingTooLong(sound.seconds)
    channels = max(sound.channels, default=1)
    rate_hz = max(sound.rates_hz, default=_OPUS_RATE_HZ)
    samples = sound.seconds * rate_hz * channels
    if samples > most_samples(most_s + SPARE_HEADER_S):
        raise too_many_samples(channels, rate_hz, most_s)
    check_cost(samples, cost_samples)
