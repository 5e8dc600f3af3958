"""Determines the sizes of MAGVITv2's networks from their tensors.

The vendor's class has hard-coded sizes, and the released `config.json` does not specify any.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.magvit.image_layers import GROUPS

IMAGE_BITS = 13
IMAGE_ENTRIES = 1 << IMAGE_BITS
"""The number of distinct image tokens. A token has one bit for each channel of the latents."""

MOST_SIDE_TOKENS = 32
"""The maximum side length of an image in tokens.

It corresponds to 512 pixels, which is the largest size in the vendor's settings.
"""

WEIGHT_FILES = ("pytorch_model.safetensors", "model.safetensors", "pytorch_model.bin")
"""The names that the weights file can have, in order of preference.

The vendor's class reads either the first or the last one.
"""


def image_weights(folder: Path) -> Weights:
    """Return the weights in the released directory.

    Raises `FailedPrecondition` if the directory does not contain any.
    """
    there = (name for name in WEIGHT_FILES if (folder / name).is_file())
    return Weights(folder, next(there, ""))


@dataclass(frozen=True, slots=True)
class PixelSizes:
    """The channel counts of a network.

    Each entry of `levels` contains the channel counts of one level, starting with its input
    channels. The first level has the resolution of the image.
    """

    levels: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, weights: Weights, stem: str) -> PixelSizes:
        """Read the sizes of the levels whose tensor names start with `stem`, such as `decoder.up.`.

        The decoder computes its levels in reverse order. Raises `FailedPrecondition` if the sizes
        cannot be read.
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
                f"{weights.folder}: the tensors {stem}* don't belong to a MAGVITv2 tokenizer: "
                f"the levels have {levels} channels, which must be multiples of {GROUPS}"
            )
        return cls(tuple(levels))

    @property
    def scale(self) -> int:
        """The side length, in pixels, of the square that a token covers."""
        return 1 << (len(self.levels) - 1)
