"""Voice activity detection for one conversation. It splits the audio into frames and determines
where speech starts and ends.
"""

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
"""The value of one step in a 16-bit sample."""


class VadStream:
    """Accepts 16-bit samples at `rate_hz` in pieces. Only one thread can use it at a time."""

    def __init__(self, rate_hz: int, rule: EndpointRule) -> None:
        self.rate_hz = rate_hz
        self.memory = no_memory()
        self._resampler = soxr.ResampleStream(rate_hz, RATE_HZ, 1, dtype="float32")
        # The samples before the next frame, and the part of this frame that has already arrived.
        self._rest = np.zeros(CONTEXT_SAMPLES, np.float32)
        self._endpointing = Endpointing(rule)

    @property
    def speaking(self) -> bool:
        """Whether speech has started and not ended yet."""
        return self._endpointing.speaking

    def forget(self) -> None:
        """Reset the state, so that any previous speech no longer counts."""
        self._endpointing.forget()

    def frames(self, pcm16: bytes) -> Tensor:
        """Return the frames that are completed by these samples, each preceded by its context
        [frames, SEEN_SAMPLES].

        Any remaining samples are kept until there are more.
        """
        samples: Tensor = np.frombuffer(pcm16, "<i2") * _STEP
        if self.rate_hz != RATE_HZ:
            samples = self._resampler.resample_chunk(samples)
        samples = np.concatenate([self._rest, samples])
        count = (len(samples) - CONTEXT_SAMPLES) // FRAME_SAMPLES
        # Copy the samples, because a view would keep a long piece alive until the next one arrives.
        self._rest = samples[count * FRAME_SAMPLES :].copy()
        if not count:
            return np.empty((0, SEEN_SAMPLES), np.float32)
        # numpy's window functions would take as long as the resampler.
        strides = (FRAME_SAMPLES * samples.itemsize, samples.itemsize)
        return np.ndarray((count, SEEN_SAMPLES), np.float32, samples, strides=strides)

    def hear(self, probability: float) -> SpeechEdge | None:
        """Return whether speech has started or ended with this frame."""
        return self._endpointing.hear(probability)

    def samples_at(self, frame: int) -> int:
        """Return the position of the start of a frame, in input samples."""
        return frame * FRAME_SAMPLES * self.rate_hz // RATE_HZ
