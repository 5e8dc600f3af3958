"""Computes the input features of recordings in the same way as the vendor's code.

A recording at 24 kHz is truncated to complete frames of 10 ms and then padded to an even number of
frames. It is split into pieces of 30 seconds, which are resampled to 16 kHz. Each piece becomes a
window of 3000 mel frames that is encoded independently. Frames after the end of the recording,
which contain only silence, are omitted here and added again by the audio tower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch.nn.functional import pad

from antiphon.pipelines.covo_audio import SAMPLE_RATE_HZ
from antiphon_services.clips.features import resampled, whisper_mel
from antiphon_services.thinker.audio import KNOWN_BYTES, AudioFrontEnd, AudioTower, Float32, Heard

ENCODER_RATE_HZ = 16_000
FRAME_SAMPLES = SAMPLE_RATE_HZ // 100
PAIR_SAMPLES = 2 * FRAME_SAMPLES
WINDOW_FRAMES = 3000
WINDOW_S = 30
FRAMES_AFTER = 2
"""The number of frames after the end of a recording that still contain part of its signal."""
FRAMES_PER_ROW = 16
MEL_BINS = 128
MOST_S = 300.0


def positions_of(frames: int) -> int:
    """Return the number of prompt positions for a recording with `frames` feature frames."""
    heard = frames - FRAMES_AFTER if frames % WINDOW_FRAMES else frames
    return -(-heard // FRAMES_PER_ROW)


@dataclass(frozen=True, slots=True)
class RecordingSizes:
    """The feature extractor settings that the thinker's front end reads.

    `n_fft` is the minimum number of samples in a recording.
    """

    sampling_rate: int = SAMPLE_RATE_HZ
    hop_length: int = FRAME_SAMPLES
    n_fft: int = PAIR_SAMPLES
    dither: float = 0.0


class WindowFrontEnd(AudioFrontEnd):
    """A front end for recordings of up to `MOST_S` seconds."""

    def __init__(self, known_bytes: int = KNOWN_BYTES) -> None:
        super().__init__(
            cast(Any, RecordingSizes()),
            AudioTower(positions_of),
            max_audio_s=MOST_S,
            known_bytes=known_bytes,
        )

    def positions(self, recordings: Sequence[Heard], *, alone: bool = False) -> tuple[int, ...]:
        """Implements `AudioFrontEnd.positions`."""
        for index, recording in enumerate(recordings):
            self.check_length(index, len(recording))
        return tuple(-(-2 * _pairs(len(each)) // FRAMES_PER_ROW) for each in recordings)

    def _by_itself(self, recording: Float32) -> Float32:
        whole = torch.from_numpy(recording[: len(recording) // FRAME_SAMPLES * FRAME_SAMPLES])
        whole = pad(whole, (0, PAIR_SAMPLES * _pairs(len(recording)) - len(whole)))
        features = []
        for samples in torch.split(whole, WINDOW_S * SAMPLE_RATE_HZ):
            heard = resampled(samples, SAMPLE_RATE_HZ, ENCODER_RATE_HZ)
            mel = whisper_mel(pad(heard, (0, WINDOW_S * ENCODER_RATE_HZ - len(heard))), MEL_BINS)
            features.append(mel[:, : len(samples) // FRAME_SAMPLES + FRAMES_AFTER])
        made: Float32 = torch.cat(features, 1).numpy().astype(np.float32)
        return made


def _pairs(samples: int) -> int:
    """Return the number of frame pairs in a recording."""
    return -(-(samples // FRAME_SAMPLES) // 2)
