"""What the headers of a file for FFmpeg state, checked before FFmpeg opens the file.

A parser yields a `MuxedSound` for each audio track. The check runs in the child process, under its
limits of CPU time and memory. A header can be false: the limits hold for what FFmpeg then does.
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
"""How much longer than its bound a header may state a recording to be: it counts an encoder's delay
and padding, and all tracks of the file together."""

_OPUS_RATE_HZ = 48_000

_PARSERS: Mapping[str, Callable[[File], list[MuxedSound]]] = {
    MATROSKA.name: matroska_sounds,
    MP4.name: mp4_sounds,
}


def check_muxed(file: File, name: str, most_s: float, cost_samples: int) -> None:
    """Check the first audio track of a file that may last `most_s`; `name` is its container's.

    Raises `RejectedRecording` for channels, a sample rate, a duration, tracks or an index out of
    bounds, and `CostlyRecording` for more samples than `cost_samples`. What a header does not
    state is not checked, and neither are containers without a header (AAC, AMR). FFmpeg rejects a
    file without an audio track.
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
