"""Converts blocks of a sound file to mono and to a different sample rate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import soundfile

from antiphon.values.chunk import Tensor
from antiphon_gateway.media.decoding.bounds import LOUDEST, RejectedRecording
from antiphon_gateway.media.resampling import RecordingResampler

BLOCK_SAMPLES = 1 << 16
"""The number of samples, counting all channels, that are decoded at a time before they are
converted to mono and resampled.
"""


def mono_blocks(file: soundfile.SoundFile, frames: int, rate_hz: int) -> Iterator[Tensor]:
    """Yield up to `frames` frames of the file as mono float32 at `rate_hz`, one block at a time.

    Joining the blocks gives the same result as resampling everything at once. Raises
    `RejectedRecording` if the samples aren't valid.
    """
    resampler = RecordingResampler(file.samplerate, rate_hz)
    size = max(1, BLOCK_SAMPLES // file.channels)
    while frames > 0:
        block = file.read(min(size, frames), dtype="float32", always_2d=True)
        # The condition is written in such a way that NaN is rejected, too.
        if len(block) and not np.abs(block).max() <= LOUDEST:
            raise RejectedRecording(f"has samples that are NaN, infinite or beyond ±{LOUDEST:g}")
        frames = frames - len(block) if len(block) else 0
        yield resampler.add(block.mean(axis=1, dtype=np.float32), last=not frames)
