"""Divides pixels into patches for vision towers, exactly as Qwen's processors do.

Images are processed by the checkpoint's processor. The frames of a video already have their final
size, so its processor would only normalize them and divide them into patches. It requires
torchvision, which this module does not.
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
    """An image or a video as patches float32 [n, values], in the order of its `grid`.

    `grid` contains the numbers of time steps, rows and columns of patches. Equal digests mean that
    the encoding and the rotary positions are equal. A digest is a negative 64-bit number.
    """

    patches: Float32
    grid: tuple[int, int, int]
    digest: int


class PatchMaker:
    """Divides pixels into patches like the `processor` of a checkpoint."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, visual: Visual) -> VisualPatches:
        """Decode a file and divide it into patches, which is slow. Raises `InvalidArgument` if the
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
        """Return the patches and the grid of frames [n, height, width, 3]. The last frame is
        repeated as padding.
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
        # For each time step, blocks of merged patches by row, the patches in each block, and then
        # colours.
        ordered = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
        patches = np.ascontiguousarray(ordered).reshape(times * rows * columns, -1)
        return patches, (times, rows, columns)
