"""Pixels of image files: squares for the tokenizer, and PNG files of drawn images. Needs pillow."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor

MOST_RATIO = 200
"""Of the sides of an image. It is scaled before it is cropped, so a thin one would fill memory."""


def square_pixels(image: Image.Image, side: int) -> Tensor:
    """uint8 [side, side, 3]: the middle of an RGB image whose shorter side is scaled to `side`.

    Raises `InvalidArgument` if one side is more than `MOST_RATIO` times the other.
    """
    width, height = image.size
    shorter, longer = sorted(image.size)
    if longer > MOST_RATIO * shorter:
        raise InvalidArgument(
            f"an image of {width} x {height} pixels is too thin; one side may be {MOST_RATIO} "
            "times the other"
        )
    size = (int(side * width / shorter), int(side * height / shorter))
    scaled = image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
    left, top = (round((each - side) / 2) for each in size)
    return np.asarray(scaled.crop((left, top, left + side, top + side)))


def png_file(pixels: Tensor) -> bytes:
    """Return a PNG file of pixels uint8 [height, width, 3]."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
