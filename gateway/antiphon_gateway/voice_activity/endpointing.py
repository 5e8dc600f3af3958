"""Probabilities of speech to its beginnings and ends. Pure.

Speech begins with a frame at the threshold that at least 96 ms of speech follow, and ends when
silence has lasted: no frame at the threshold since one that was clearly below it. Between the two
limits nothing changes (hysteresis), so that a voice at the threshold does not flicker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from antiphon_gateway.voice_activity.network import FRAME_S

HYSTERESIS = 0.15
LOWEST = 0.01
"""No probability is below silence's limit if that may be zero."""
MIN_SPEECH_FRAMES = 3


@dataclass(frozen=True, slots=True)
class EndpointRule:
    """From which probability on it is speech, and how long silence ends it."""

    threshold: float = 0.5
    silence_s: float = 0.5


@dataclass(frozen=True, slots=True)
class SpeechEdge:
    """Speech began with this frame, counted from 0; or was over before it, silence included."""

    begins: bool
    frame: int


class Endpointing:
    """Takes one frame after the other."""

    def __init__(self, rule: EndpointRule) -> None:
        self._threshold = rule.threshold
        self._silent = max(rule.threshold - HYSTERESIS, LOWEST)
        self._silence_frames = max(1, math.ceil(rule.silence_s / FRAME_S - 1e-9))
        self._heard = 0
        self._spoken = 0
        self._quiet = 0
        self.speaking = False

    def hear(self, probability: float) -> SpeechEdge | None:
        """Whether speech has begun or ended with the next frame."""
        self._heard += 1
        if not self.speaking:
            return self._begin(probability)
        if probability >= self._threshold:
            self._quiet = 0
        elif self._quiet or probability < self._silent:
            self._quiet += 1
        if self._quiet < self._silence_frames:
            return None
        self.forget()
        return SpeechEdge(begins=False, frame=self._heard)

    def forget(self) -> None:
        """Reset: earlier speech counts no more."""
        self.speaking = False
        self._spoken = self._quiet = 0

    def _begin(self, probability: float) -> SpeechEdge | None:
        at_least = self._silent if self._spoken else self._threshold
        self._spoken = self._spoken + 1 if probability >= at_least else 0
        if self._spoken < MIN_SPEECH_FRAMES:
            return None
        edge = SpeechEdge(begins=True, frame=self._heard - self._spoken)
        self.speaking, self._spoken = True, 0
        return edge
