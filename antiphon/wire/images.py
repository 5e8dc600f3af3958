"""Generated images on the edge `image`. A position on this edge is an image.

`images` is an int64 tensor of shape [images, 2]. A row contains the size of an image in bytes, and
the number of positions that the image occupied in the model's context, such as its tokens. `files`
(uint8) contains the bytes of the files. The bytes of an image are in the same chunk as its row or
in earlier chunks, because a file may be larger than a chunk.
"""

from __future__ import annotations

import numpy as np

from antiphon.values.chunk import Tensors


def image_parts(file: bytes, positions: int = 0) -> tuple[Tensors, Tensors]:
    """Return the tensors of an image. Emit them in this order as two `Emitted` values at the
    position of the image.

    `file` is a complete PNG, JPEG or WebP file. `positions` is added to the usage.
    """
    row = np.array([[len(file), positions]], np.int64)
    return {"files": np.frombuffer(file, np.uint8)}, {"images": row}
