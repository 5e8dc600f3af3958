"""Recordings of plain samples, as conversations have them: read where they are, never copied."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from antiphon_gateway.media.audio_out import SAMPLE_BYTES

NO_TURN = -1

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, eq=False)
class PcmRecording:
    """16-bit little-endian mono samples at `rate_hz`, which do not change any more.

    A recording is equal only to itself, and its `number` is unique, so that comparisons and hashes
    do not depend on its length. `turn` is the number of the conversation's turn that it starts
    with.
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
