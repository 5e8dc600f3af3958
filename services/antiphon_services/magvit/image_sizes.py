"""Sizes of MAGVITv2's networks, read from their tensors.

The vendor's class has fixed sizes, and the released `config.json` states none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.magvit.image_layers import GROUPS

IMAGE_BITS = 13
IMAGE_ENTRIES = 1 << IMAGE_BITS
"""An image token is one of so many: a bit for each channel of the latents."""

MOST_SIDE_TOKENS = 32
"""Longest side of an image in tokens: 512 pixels, the largest that the vendor's settings have."""

WEIGHT_FILES = ("pytorch_model.safetensors", "model.safetensors", "pytorch_model.bin")
"""Names of the weights, in order of preference. The vendor's class reads the first or the last."""


def image_weights(folder: Path) -> Weights:
    """Return the weights in the released directory. Raises `FailedPrecondition` if it has none."""
    there = (name for name in WEIGHT_FILES if (folder / name).is_file())
    return Weights(folder, next(there, ""))


@dataclass(frozen=True, slots=True)
class PixelSizes:
    """Channels of one of the networks: `levels` has those of each level, its inputs first.

    The first level has the resolution of the image.
    """

    levels: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, weights: Weights, stem: str) -> PixelSizes:
        """Read those of the levels below a stem such as `decoder.up.`.

        Levels of a decoder are computed from the last to the first. Raises `FailedPrecondition`.
        """
        numbers: dict[int, int] = {}
        for name in weights.files:
            number, _, rest = name.removeprefix(stem).partition(".block.")
            if name.startswith(stem) and rest.endswith(".conv1.weight"):
                level, block = int(number), int(rest.partition(".")[0])
                numbers[level] = max(numbers.get(level, 0), block + 1)
        levels = []
        with weights.open() as reader:
            for level in range(len(numbers)):
                shapes = [
                    reader.read(f"{stem}{level}.block.{block}.conv1.weight").shape
                    for block in range(numbers.get(level, 0))
                ]
                levels.append((*(each[1] for each in shapes[:1]), *(each[0] for each in shapes)))
        if not levels or not all(levels) or any(each % GROUPS for row in levels for each in row):
            raise FailedPrecondition(
                f"{weights.folder}: the tensors {stem}* are no MAGVITv2: levels of {levels} "
                f"channels, which must be multiples of {GROUPS}"
            )
        return cls(tuple(levels))

    @property
    def scale(self) -> int:
        """Pixels of a token's side."""
        return 1 << (len(self.levels) - 1)
