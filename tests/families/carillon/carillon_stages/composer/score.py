"""What is rung for a text: pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from carillon import MOODS, SAMPLES_PER_FRAME, Strokes

from antiphon.values.sampling import Sampling


def compose(text: str, sampling: Sampling, mood: str, tempo: float) -> Strokes:
    """A stroke [bell, mood] for each letter, `tempo` times; drawn bells if not greedy."""
    bells = np.repeat(np.frombuffer(text.encode(), np.uint8), int(tempo)).astype(np.uint16)
    bells = bells[: sampling.max_tokens]
    if not sampling.greedy:
        draw = np.random.default_rng(sampling.seed)
        bells = bells + draw.integers(max(1, sampling.top_k), size=len(bells), dtype=np.uint16)
    return np.stack([bells, np.full_like(bells, MOODS.index(mood.casefold()))], axis=1)


def strokes_of(recording: npt.NDArray[np.float32]) -> Strokes:
    """The strokes that a recording is heard as: one for each whole frame of it."""
    frames = recording[: len(recording) // SAMPLES_PER_FRAME * SAMPLES_PER_FRAME]
    loudness = np.abs(frames.reshape(-1, SAMPLES_PER_FRAME)).mean(axis=1)
    bells = np.round(loudness * 100).astype(np.uint16)
    return np.stack([bells, np.zeros_like(bells)], axis=1)
