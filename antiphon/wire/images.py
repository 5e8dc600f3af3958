"""Generated images on the edge `image`, whose positions count images.

A row of `images` (int64 [images, 2]) has an image's size in bytes and the positions that it took of
the model's context, such as its tokens. The bytes of the file are in `files` (uint8), in the same
chunk or in earlier ones. Files may be larger than a chunk.
"""

from __future__ import annotations

import numpy as np

from antiphon.values.chunk import Tensors


def image_parts(file: bytes, positions: int = 0) -> tuple[Tensors, Tensors]:
    """Return the tensors of an image, for two `Emitted` at the image's position, in this order.

    `file` is a whole PNG, JPEG or WebP file. `positions` counts towards the usage.
    """
    row = np.array([[len(file), positions]], np.int64)
    return {"files": np.frombuffer(file, np.uint8)}, {"images": row}
