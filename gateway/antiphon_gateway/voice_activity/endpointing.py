"""Detects the start and end of speech, given the speech probability of each frame. This module
performs no I/O.

Speech starts with a frame whose probability is at or above the threshold, provided that at least 96
ms of speech follow. It ends after a period of silence. Silence begins with a frame that is clearly
below the threshold and lasts as long as no frame reaches the threshold. Between the two limits,
nothing changes (hysteresis). A voice that is close to the threshold therefore doesn't cause rapid
changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from antiphon_gateway.voice_activity.network import FRAME_S

HYSTERESIS = 0.15
LOWEST = 0.01
"""The minimum value of the silence limit. If the limit were zero, no probability could be
below it.
"""
MIN_SPEECH_FRAMES = 3


@dataclass(frozen=True, slots=True)
class EndpointRule:
    """The probability at which a frame counts as speech, and the minimum length of the silence that
    ends speech.
    """

    threshold: float = 0.5
    silence_s: float = 0.5


@dataclass(frozen=True, slots=True)
class SpeechEdge:
    """The number of the frame at which speech started, or before which it ended, including the
    silence. Frames are counted from 0.
    """

    begins: bool
    frame: int


class Endpointing:
    """Processes frames one by one."""

    def __init__(self, rule: EndpointRule) -> None:
        self._threshold = rule.threshold
        self._silent = max(rule.threshold - HYSTERESIS, LOWEST)
        self._silence_frames = max(1, math.ceil(rule.silence_s / FRAME_S - 1e-9))
        self._heard = 0
        self._spoken = 0
        self._quiet = 0
        self.speaking = False

    def hear(self, probability: float) -> SpeechEdge | None:
        """Return whether speech has started or ended with this frame."""
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
        """Reset the state, so that any previous speech no longer counts."""
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
