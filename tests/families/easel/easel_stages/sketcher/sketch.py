"""What is sketched for a text: pure."""

from __future__ import annotations

import numpy as np
from easel import Lines

from antiphon.values.sampling import Sampling


def caption(text: str) -> str:
    """What the sketcher says."""
    return f"Here is {text}"


def sketch(text: str, sampling: Sampling) -> Lines:
    """A grey for each byte of the text; other ones if they are drawn."""
    greys = np.frombuffer(text.encode(), np.uint8).astype(np.uint16)
    if not sampling.greedy:
        greys = greys + np.random.Generator(np.random.Philox(key=sampling.seed)).integers(
            256, size=len(greys), dtype=np.uint16
        )
    return greys % 256
