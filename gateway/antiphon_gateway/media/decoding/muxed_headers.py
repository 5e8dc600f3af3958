"""Checks what the headers of a file declare before FFmpeg opens the file.

A parser yields a `MuxedSound` for each audio track. The check runs in the child process, within its
limits on CPU time and memory. A header can be wrong, so the limits also apply to what FFmpeg does
afterwards.
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
"""A header may declare a recording to be this many seconds longer than its limit, because the
length includes the delay and the padding of an encoder, and covers all tracks of the file.
"""

_OPUS_RATE_HZ = 48_000

_PARSERS: Mapping[str, Callable[[File], list[MuxedSound]]] = {
    MATROSKA.name: matroska_sounds,
    MP4.name: mp4_sounds,
}


def check_muxed(file: File, name: str, most_s: float, cost_samples: int) -> None:
    """Check the first audio track of a file that may be up to `most_s` seconds long. `name` is the
    name of its container.

    Raises `RejectedRecording` if the channels, the sample rate, the length, the tracks or the index
    exceed a limit, and `CostlyRecording` if there are more than `cost_samples` samples. Properties
    that a header does not declare are not checked. Neither are containers without a header (AAC and
    AMR). FFmpeg rejects a file that has no audio track.
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
