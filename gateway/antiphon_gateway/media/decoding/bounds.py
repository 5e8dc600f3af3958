"""Limits on recordings. They are checked against a recording's header before any samples are
decoded.
"""

from __future__ import annotations

import math

MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 192_000
MAX_CHANNELS = 8
DENSEST_PER_S = 2 * 48_000
"""The maximum number of samples per second, counting all channels, for a recording of the maximum
length. A shorter recording can have the same total number of samples.
"""
LOUDEST = 2.0**31
"""Float files contain either values from -1 to 1, or integers of up to 32 bits."""
SPARE_S = 0.1
"""If the length of a recording isn't known, it is read for this many seconds beyond its limit, in
order to find out whether it is too long.
"""


class RejectedRecording(Exception):
    """Raised if a recording isn't decoded. The message describes what is wrong with the file."""


class RecordingTooLong(RejectedRecording):
    """The recording is too long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"is {seconds:.1f} seconds long")
        self.seconds = seconds


class CostlyRecording(Exception):
    """The recording declares more samples than its lane accepts."""


def most_samples(most_s: float) -> int:
    """Return the maximum number of samples, counting all channels, for a recording of `most_s`
    seconds.
    """
    return math.ceil(most_s * DENSEST_PER_S)


def check_sound(channels: int, rate_hz: int) -> None:
    """Raise `RejectedRecording` if the number of channels or the sample rate is out of range."""
    if not 1 <= channels <= MAX_CHANNELS:
        raise RejectedRecording(f"must have 1 to {MAX_CHANNELS} channels, got {channels}")
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise RejectedRecording(
            f"must have a sample rate of {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz, got {rate_hz}"
        )


def check_frames(frames: int, channels: int, rate_hz: int, most_s: float) -> None:
    """Raise `RejectedRecording` if there are no frames or if there are more than may be decoded."""
    if frames <= 0:
        raise RejectedRecording("has no samples")
    if frames / rate_hz > most_s:
        raise RecordingTooLong(frames / rate_hz)
    if frames * channels > most_samples(most_s):
        raise too_many_samples(channels, rate_hz, most_s)


def check_cost(samples: float, cost_samples: int) -> None:
    """Raise `CostlyRecording` if there are more than `cost_samples` samples, counting all
    channels.
    """
    if samples > cost_samples:
        raise CostlyRecording


def too_many_samples(channels: int, rate_hz: int, most_s: float) -> RejectedRecording:
    """Return the error for a recording that has too many samples given its rate, channels and
    length.
    """
    return RejectedRecording(
        f"{channels} channels at {rate_hz} Hz exceed the maximum of {most_samples(most_s)} "
        "samples for a recording; send fewer channels or use a lower sample rate"
    )
