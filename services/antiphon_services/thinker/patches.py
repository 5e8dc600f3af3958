"""Splits pixels into patches for vision towers, exactly like Qwen's processors.

Images are processed by the checkpoint's own processor. The frames of a video already have their
final size, so the video processor would only normalize them and split them into patches. It is not
used because it requires torchvision, which this module doesn't need.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from antiphon.values.conversation import recording_key
from antiphon_services.thinker.audio import digest

if TYPE_CHECKING:
    from antiphon_services.thinker.vision import Pixels, Visual

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VisualPatches:
    """The patches of an image or a video (float32 [n, values]), in the order of its `grid`.

    `grid` contains the number of time steps, rows and columns of patches. If two digests are equal,
    the encodings and the rotary positions are equal as well. A digest is a negative 64-bit number.
    """

    patches: Float32
    grid: tuple[int, int, int]
    digest: int


class PatchMaker:
    """Splits pixels into patches, like a checkpoint's `processor`."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, visual: Visual) -> VisualPatches:
        """Decode a file and split it into patches. This is slow. Raises `InvalidArgument` if the
        file is corrupt.
        """
        pixels = visual.pixels()
        if isinstance(pixels, np.ndarray):
            patches, grid = self._cut(pixels)
        else:
            made = self._processor(images=[pixels], return_tensors="np")
            patches, grid = made["pixel_values"], tuple(made["image_grid_thw"][0].tolist())
        how = struct.pack("<4q", *grid, visual.step)
        return VisualPatches(patches, grid, digest(how, recording_key(patches)))

    def _cut(self, frames: Pixels) -> tuple[Float32, tuple[int, int, int]]:
        """Return the patches and the grid for frames [n, height, width, 3]. If necessary, the last
        frame is repeated as padding.
        """
        processor = self._processor
        together, side, merged = (
            processor.temporal_patch_size,
            processor.patch_size,
            processor.merge_size,
        )
        scale = 1.0 / processor.rescale_factor
        mean = np.asarray(processor.image_mean, np.float32) * np.float32(scale)
        deviation = np.asarray(processor.image_std, np.float32) * np.float32(scale)
        normal = (frames.astype(np.float32) - mean) / deviation
        missing = -len(frames) % together
        normal = np.concatenate((normal, np.repeat(normal[-1:], missing, axis=0)))
        times = len(normal) // together
        rows, columns = frames.shape[1] // side, frames.shape[2] // side
        cut = normal.reshape(
            times, together, rows // merged, merged, side, columns // merged, merged, side, 3
        )
        # The order is: time steps, rows of merged blocks, blocks within a row, patches within a
        # block, and then colours.
        ordered = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
        patches = np.ascontiguousarray(ordered).reshape(times * rows * columns, -1)
        return patches, (times, rows, columns)
