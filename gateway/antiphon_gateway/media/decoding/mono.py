"""Blocks of a sound file as mono at another rate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import soundfile

from antiphon.values.chunk import Tensor
from antiphon_gateway.media.decoding.bounds import LOUDEST, RejectedRecording
from antiphon_gateway.media.resampling import RecordingResampler

BLOCK_SAMPLES = 1 << 16
"""Of all channels together: how much is decoded before it becomes mono and is resampled."""


def mono_blocks(file: soundfile.SoundFile, frames: int, rate_hz: int) -> Iterator[Tensor]:
    """At most `frames` of the file as mono float32 at `rate_hz`, block by block; together they
    are what resampling it at once gives. Raises `RejectedRecording` for samples that are none."""
    resampler = RecordingResampler(file.samplerate, rate_hz)
    size = max(1, BLOCK_SAMPLES // file.channels)
    while frames > 0:
        block = file.read(min(size, frames), dtype="float32", always_2d=True)
        # Not NaN either.
        if len(block) and not np.abs(block).max() <= LOUDEST:
            raise RejectedRecording(f"has samples that are NaN, infinite or beyond {LOUDEST:g}")
        frames = frames - len(block) if len(block) else 0
        yield resampler.add(block.mean(axis=1, dtype=np.float32), last=not frames)
