"""Recordings that consist of raw samples, which are used in conversations. They are read in place
and never copied.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from antiphon_gateway.media.audio_out import SAMPLE_BYTES

NO_TURN = -1

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, eq=False)
class PcmRecording:
    """16-bit little-endian mono samples at `rate_hz`. They never change.

    A recording is equal only to itself, and its `number` is unique. This way, the time for
    comparing or hashing recordings doesn't depend on their length. `turn` is the number of the turn
    with which the recording starts.
    """

    pcm16: bytes | bytearray
    rate_hz: int
    turn: int = NO_TURN
    number: int = field(default_factory=_numbers.__next__, init=False)

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.pcm16) // SAMPLE_BYTES

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return len(self.pcm16) / (SAMPLE_BYTES * self.rate_hz)

    def behind(self, samples: int) -> bytes:
        """Return the data after the first `samples` samples."""
        return bytes(memoryview(self.pcm16)[samples * SAMPLE_BYTES :])
