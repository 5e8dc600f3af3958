"""Generated images on the `image` edge. Each position on this edge is an image.

`images` is an int64 tensor with the shape [images, 2]. Each row contains the size of an image in
bytes, and the number of positions that the image took up in the model's context, for example as
tokens. `files` (uint8) contains the bytes of the files. Since a file may be larger than a chunk,
the bytes of an image can be in the same chunk as its row or in earlier ones.
"""

from __future__ import annotations

import numpy as np

from antiphon.values.chunk import Tensors


def image_parts(file: bytes, positions: int = 0) -> tuple[Tensors, Tensors]:
    """Return the tensors of an image. Emit them as two `Emitted` values, in this order and at the
    image's position.

    `file` is a complete PNG, JPEG or WebP file. `positions` is added to the usage.
    """
    row = np.array([[len(file), positions]], np.int64)
    return {"files": np.frombuffer(file, np.uint8)}, {"images": row}
