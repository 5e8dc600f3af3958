"""Bounds of a recording, checked against its header before a sample is decoded."""

from __future__ import annotations

import math

MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 192_000
MAX_CHANNELS = 8
DENSEST_PER_S = 2 * 48_000
"""Samples a second, of all channels together, that a recording of the longest duration may have. A
shorter one may have as many in all."""
LOUDEST = 2.0**31
"""Float files hold -1 to 1, or integers of up to 32 bits."""
SPARE_S = 0.1
"""How far past its bound a recording of unknown length is read, to see that it is too long."""


class RejectedRecording(Exception):
    """A recording that is not decoded; the message describes the file's fault."""


class RecordingTooLong(RejectedRecording):
    """A recording of more seconds than are allowed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"is {seconds:.1f} seconds long")
        self.seconds = seconds


class CostlyRecording(Exception):
    """A recording that states more samples than its lane decodes."""


def most_samples(most_s: float) -> int:
    """Return the maximum number of samples of a recording, over all channels, for a length of
    `most_s`."""
    return math.ceil(most_s * DENSEST_PER_S)


def check_sound(channels: int, rate_hz: int) -> None:
    """Raise `RejectedRecording` for channels or a sample rate out of bounds."""
    if not 1 <= channels <= MAX_CHANNELS:
        raise RejectedRecording(f"must have 1 to {MAX_CHANNELS} channels, has {channels}")
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise RejectedRecording(
            f"must have {MIN_RATE_HZ} to {MAX_RATE_HZ} samples a second, has {rate_hz}"
        )


def check_frames(frames: int, channels: int, rate_hz: int, most_s: float) -> None:
    """Raise `RejectedRecording` for no frames at all, and for more than may be decoded."""
    if frames <= 0:
        raise RejectedRecording("has no samples")
    if frames / rate_hz > most_s:
        raise RecordingTooLong(frames / rate_hz)
    if frames * channels > most_samples(most_s):
        raise too_many_samples(channels, rate_hz, most_s)


def check_cost(samples: float, cost_samples: int) -> None:
    """Raise `CostlyRecording` for more samples of all channels together than `cost_samples`."""
    if samples > cost_samples:
        raise CostlyRecording


def too_many_samples(channels: int, rate_hz: int, most_s: float) -> RejectedRecording:
    """The error for a recording whose rate, channels and seconds make too many samples."""
    return RejectedRecording(
        f"{channels} channels at {rate_hz} Hz make more than {most_samples(most_s)} samples, the "
        "most of one recording; send fewer channels or a lower sample rate"
    )
