"""Assembles image files from the chunks on the edge `image`. The format is defined in
`antiphon/wire/images.py`.
"""

from __future__ import annotations

from antiphon.errors import DataLoss, ResourceExhausted
from antiphon.values.chunk import Chunk
from antiphon_gateway.media.vision_in import image_media_type
from antiphon_gateway.sessions.events import ImageFile, ImageProduced

MAX_IMAGES = 64
"""The maximum number of images in a single answer."""


class ImageReader:
    """Assembles the images of one segment. There are limits on their number and their
    total size.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.positions = self._images = 0
        self._limit_bytes = limit_bytes
        self._came = 0
        self._rest = bytearray()

    def read(self, chunk: Chunk) -> ImageProduced | None:
        """Return the images that this chunk completes. Raises `DataLoss` if a file is invalid, and
        `ResourceExhausted` if a limit is exceeded.
        """
        if (files := chunk.tensors.get("files")) is not None:
            self._came += files.nbytes
            if self._came > self._limit_bytes:
                raise ResourceExhausted(
                    f"image: the images of the answer have more than {self._limit_bytes} bytes "
                    "(gateway.limits.max_image_bytes); request fewer or smaller images",
                    edge=chunk.edge,
                )
            self._rest += files.tobytes()
        rows = chunk.tensors["images"].tolist() if "images" in chunk.tensors else []
        self._images += len(rows)
        if self._images > MAX_IMAGES:
            raise ResourceExhausted(
                f"image: the answer has more than {MAX_IMAGES} images; request fewer",
                edge=chunk.edge,
            )
        images = tuple(self._take(size_bytes, chunk.edge) for size_bytes, _ in rows)
        self.positions += sum(positions for _, positions in rows)
        if chunk.segment_finished and self._rest:
            raise DataLoss("image: the edge ended in the middle of a file", edge=chunk.edge)
        return ImageProduced(images) if images else None

    def _take(self, size_bytes: int, edge: str) -> ImageFile:
        file = bytes(self._rest[: max(0, size_bytes)])
        media_type = image_media_type(file)
        if len(file) != size_bytes or not media_type:
            raise DataLoss(
                "image: a file is truncated, or is not a PNG, JPEG or WebP file", edge=edge
            )
        del self._rest[:size_bytes]
        return ImageFile(file, media_type)
