"""What a microphone hears: recorded sentences (`tests/recordings`) in silence and noise."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

RATE_HZ = 24_000
NAMES = ("slow", "fast", "low", "high")
FOLDER = Path(__file__).parents[1] / "recordings"
AUDIBLE = 0.02
"""Of the loudest sample: less is no voice."""

Samples = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Heard:
    """Samples, and where in them somebody speaks, in seconds."""

    samples: Samples
    speech: tuple[tuple[float, float], ...] = ()

    def pieces(self, seconds: float) -> Iterator[str]:
        """The samples in base64, so long each."""
        pcm16 = (np.clip(self.samples, -1, 1) * 32767).astype("<i2")
        size = round(seconds * RATE_HZ)
        for start in range(0, len(pcm16), size):
            yield base64.b64encode(pcm16[start : start + size].tobytes()).decode()


def sentence(name: str, seconds: float = 60.0) -> Samples:
    """A sentence, or its beginning."""
    samples, rate_hz = soundfile.read(FOLDER / f"{name}.ogg", dtype="float32")
    assert rate_hz == RATE_HZ
    return np.asarray(samples)[: round(seconds * RATE_HZ)]


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


def spoken(sentences: list[Samples], *, before_s: float, after_s: float, snr_db: float) -> Heard:
    """Sentences with silence around each, all in white noise."""
    parts: list[Samples] = []
    speech = []
    length = 0
    for samples in sentences:
        (loud,) = np.nonzero(np.abs(samples) > AUDIBLE * np.abs(samples).max())
        start = length + round(before_s * RATE_HZ)
        speech.append(((start + loud[0]) / RATE_HZ, (start + loud[-1]) / RATE_HZ))
        parts += [silence(before_s), samples, silence(after_s)]
        length = sum(map(len, parts))
    clean = np.concatenate(parts)
    power = np.mean(np.concatenate(sentences) ** 2)
    noise = np.random.default_rng(20).normal(0, np.sqrt(power / 10 ** (snr_db / 10)), len(clean))
    return Heard((clean + noise).astype(np.float32), tuple(speech))
