"""Computes the input features of recordings in the same way as the vendor's code.

A recording becomes Whisper's log mel features, without padding. Each recording is encoded alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from antiphon_services.clips.features import WHISPER_HOP, WHISPER_WINDOW, whisper_mel
from antiphon_services.thinker.audio import KNOWN_BYTES, AudioFrontEnd, AudioTower, Float32, Heard

SAMPLE_RATE_HZ = 16_000
FRAMES_PER_S = SAMPLE_RATE_HZ // WHISPER_HOP


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """The feature extractor settings that the thinker's front end reads.

    `n_fft` is the minimum number of samples in a recording.
    """

    sampling_rate: int = SAMPLE_RATE_HZ
    hop_length: int = WHISPER_HOP
    n_fft: int = WHISPER_WINDOW
    dither: float = 0.0


@dataclass(frozen=True, slots=True)
class Downsampling:
    """The kernel and the stride of the projection's convolution."""

    kernel: int
    stride: int

    def positions_of(self, frames: int) -> int:
        """Return the number of prompt positions for a recording with `frames` mel frames."""
        rows = -(-frames // 2)
        return (rows + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1


class UnpaddedFrontEnd(AudioFrontEnd):
    """A front end for recordings of up to `max_audio_s` seconds."""

    def __init__(
        self,
        bins: int,
        downsampling: Downsampling,
        *,
        max_audio_s: float,
        known_bytes: int = KNOWN_BYTES,
    ) -> None:
        self._bins = bins
        super().__init__(
            cast(Any, RecordingSettings()),
            AudioTower(downsampling.positions_of),
            max_audio_s=max_audio_s,
            known_bytes=known_bytes,
        )

    def positions(self, recordings: Sequence[Heard], *, alone: bool = False) -> tuple[int, ...]:
        """Implements `AudioFrontEnd.positions`."""
        for index, recording in enumerate(recordings):
            self.check_length(index, len(recording))
        return tuple(self.positions_of(len(each) // WHISPER_HOP) for each in recordings)

    def _by_itself(self, recording: Float32) -> Float32:
        made: Float32 = whisper_mel(torch.from_numpy(recording), self._bins).numpy()
        return made.astype(np.float32)
