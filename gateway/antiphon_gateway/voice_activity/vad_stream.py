"""The voice activity state of one conversation: its audio in frames, and where speech begins and
ends."""

from __future__ import annotations

import numpy as np
import soxr

from antiphon.values.chunk import Tensor
from antiphon_gateway.voice_activity.endpointing import Endpointing, EndpointRule, SpeechEdge
from antiphon_gateway.voice_activity.network import (
    CONTEXT_SAMPLES,
    FRAME_SAMPLES,
    RATE_HZ,
    SEEN_SAMPLES,
    no_memory,
)

_STEP = np.float32(1 / 32768)
"""Of 16-bit samples."""


class VadStream:
    """Takes 16-bit samples of `rate_hz` in pieces. One thread at a time may use it."""

    def __init__(self, rate_hz: int, rule: EndpointRule) -> None:
        self.rate_hz = rate_hz
        self.memory = no_memory()
        self._resampler = soxr.ResampleStream(rate_hz, RATE_HZ, 1, dtype="float32")
        # What the next frame is seen with, and what there is of it.
        self._rest = np.zeros(CONTEXT_SAMPLES, np.float32)
        self._endpointing = Endpointing(rule)

    @property
    def speaking(self) -> bool:
        """Whether speech has begun that has not ended."""
        return self._endpointing.speaking

    def forget(self) -> None:
        """Reset: earlier speech counts no more."""
        self._endpointing.forget()

    def frames(self, pcm16: bytes) -> Tensor:
        """The frames that these samples complete, each with what the network sees before it:
        [frames, SEEN_SAMPLES]. The rest waits for more."""
        samples: Tensor = np.frombuffer(pcm16, "<i2") * _STEP
        if self.rate_hz != RATE_HZ:
            samples = self._resampler.resample_chunk(samples)
        samples = np.concatenate([self._rest, samples])
        count = (len(samples) - CONTEXT_SAMPLES) // FRAME_SAMPLES
        # A copy: a view would keep a long piece while the next comes.
        self._rest = samples[count * FRAME_SAMPLES :].copy()
        if not count:
            return np.empty((0, SEEN_SAMPLES), np.float32)
        # numpy's functions for windows take as long as the resampler.
        strides = (FRAME_SAMPLES * samples.itemsize, samples.itemsize)
        return np.ndarray((count, SEEN_SAMPLES), np.float32, samples, strides=strides)

    def hear(self, probability: float) -> SpeechEdge | None:
        """Whether speech has begun or ended with the next frame."""
        return self._endpointing.hear(probability)

    def samples_at(self, frame: int) -> int:
        """Return the start of a frame, in input samples."""
        return frame * FRAME_SAMPLES * self.rate_hz // RATE_HZ
