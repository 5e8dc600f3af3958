"""Recordings of plain samples, as conversations have them: read where they are, never copied."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from antiphon_gateway.media.audio_out import SAMPLE_BYTES

NO_TURN = -1

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, eq=False)
class PcmRecording:
    """16-bit little-endian mono samples, which nobody changes any more, at `rate_hz`.

    It is equal to itself alone, and no other has its `number`: so nothing is compared or summed
    up whose length is that of the recording. `turn` is the number of the turn, among those that a
    conversation has heard, from whose beginning on it was recorded.
    """

    pcm16: bytes | bytearray
    rate_hz: int
    turn: int = NO_TURN
    number: int = field(default_factory=_numbers.__next__, init=False)

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self.pcm16) // SAMPLE_BYTES

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.pcm16) / (SAMPLE_BYTES * self.rate_hz)

    def behind(self, samples: int) -> bytes:
        """What comes after so many samples."""
        return bytes(memoryview(self.pcm16)[samples * SAMPLE_BYTES :])
