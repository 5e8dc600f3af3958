"""Crops images to squares for the tokenizer and encodes images as PNG files. Requires Pillow."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor

MOST_RATIO = 200
"""The maximum aspect ratio of an image.

Images are scaled before they are cropped, so scaling a very thin image could exhaust the memory.
"""


def square_pixels(image: Image.Image, side: int) -> Tensor:
    """Scale the shorter side of an RGB image to `side` and crop the image to its center.

    Returns a uint8 array of shape [side, side, 3]. Raises `InvalidArgument` if the aspect ratio
    exceeds `MOST_RATIO`.
    """
    width, height = image.size
    shorter, longer = sorted(image.size)
    if longer > MOST_RATIO * shorter:
        raise InvalidArgument(
            f"an image of {width} x {height} pixels is too narrow; the longer side may be at "
            f"most {MOST_RATIO} times the shorter one"
        )
    size = (int(side * width / shorter), int(side * height / shorter))
    scaled = image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
    left, top = (round((each - side) / 2) for each in size)
    return np.asarray(scaled.crop((left, top, left + side, top + side)))


def png_file(pixels: Tensor) -> bytes:
    """Encode pixels as a PNG file. `pixels` is a uint8 array of shape [height, width, 3]."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
