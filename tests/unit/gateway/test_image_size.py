"""Sizes in headers of images, compared with the encoder that wrote the files."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from antiphon_gateway.media.image_size import ImageSize, jpeg_scans, jpeg_size, png_size, webp_size


def encoded(size: tuple[int, int], kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, 77).save(file, kind, **how)
    return file.getvalue()


Sizes = Callable[[bytes], ImageSize | None]
ENCODINGS: dict[str, tuple[Sizes, bytes, dict[str, Any]]] = {
    "png": (png_size, b"IHDR", {}),
    "jpeg": (jpeg_size, b"\xff\xc0", {}),
    "jpeg-progressive": (jpeg_size, b"\xff\xc2", {"progressive": True}),
    "webp-lossy": (webp_size, b"VP8 ", {}),
    "webp-lossless": (webp_size, b"VP8L", {"lossless": True}),
    "webp-canvas": (webp_size, b"VP8X", {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}),
}


@pytest.mark.parametrize("size", [(1, 1), (9, 7), (300, 2), (1, 513)])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_size_is_the_one_that_was_encoded(encoding: str, size: tuple[int, int]) -> None:
    size_of, marker, how = ENCODINGS[encoding]
    file = encoded(size, encoding.partition("-")[0], **how)
    assert marker in file
    assert size_of(file) == size


def test_scans_of_a_progressive_file_are_counted() -> None:
    assert jpeg_scans(encoded((9, 7), "jpeg")) == 1
    assert jpeg_scans(encoded((9, 7), "jpeg", progressive=True)) > 1
