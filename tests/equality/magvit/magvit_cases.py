"""What the vendor's MAGVITv2 was asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon_services.magvit.image_sizes import IMAGE_ENTRIES

SEED = 0
SIDE = 32
"""Pixels of the side that images are scaled to."""


@dataclass(frozen=True, slots=True)
class DrawnCase:
    """An image of so many tokens on a side."""

    name: str
    side: int

    @property
    def ids(self) -> npt.NDArray[np.uint16]:
        """uint16 [side²]."""
        drawn = np.random.default_rng(self.side).integers(0, IMAGE_ENTRIES, self.side**2)
        return drawn.astype(np.uint16)


@dataclass(frozen=True, slots=True)
class SeenCase:
    """An image of this size in pixels."""

    name: str
    width: int
    height: int

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """uint8 [height, width, 3]: coloured waves with some noise."""
        rng = np.random.default_rng(self.width * 1000 + self.height)
        rows, columns = np.mgrid[: self.height, : self.width]
        phases = rng.uniform(0, 6, 3)
        waves = [np.sin(rows / 7 + columns / 5 * (each + 1) + phases[each]) for each in range(3)]
        noise = rng.normal(0, 0.3, (self.height, self.width, 3))
        mixed = np.stack(waves, 2) + noise
        return ((np.clip(mixed, -1, 1) + 1) * 127.5).astype(np.uint8)


DRAWN_CASES = (DrawnCase("one", 1), DrawnCase("small", 5), DrawnCase("square", 12))
SEEN_CASES = (
    SeenCase("exact", 32, 32),
    SeenCase("wide", 91, 40),
    SeenCase("high", 33, 77),
    SeenCase("tiny", 5, 3),
    SeenCase("thin", 300, 2),
)
