"""Pictures and clips to show, with the pixels that should be seen of them."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from antiphon_testkit.conversations import conversation
from antiphon_testkit.qwen3_omni.reference import Case

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Picture:
    """A file and its pixels: [height, width, 3], or [frames, height, width, 3] of a clip."""

    file: bytes
    pixels: Pixels


def blotches(seed: int, width: int, height: int, *, times: int = 1) -> Pixels:
    """Smooth colours that drift with time, [times, height, width, 3]."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width] / 16
    made = np.empty((times, height, width, 3))
    for colour in range(3):
        a, b, c, d = random.uniform(0.3, 2.5, 4)
        for time in range(times):
            made[time, ..., colour] = np.sin(a * rows + c + 0.4 * time) * np.cos(b * columns + d)
    return (127.5 + 127.5 * made).astype(np.uint8)


def picture(seed: int, width: int, height: int) -> Picture:
    """A PNG file."""
    from PIL import Image

    (pixels,) = blotches(seed, width, height)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return Picture(file.getvalue(), pixels)


def clip(
    seed: int, *, size: tuple[int, int], seen: tuple[int, int], indices: Sequence[int], rate: float
) -> Picture:
    """An MP4 file of frames of `size` (width, height), as many as `indices` reach.

    Of them those at `indices` should be seen, made as large as `seen`.
    """
    import cv2
    from PIL import Image

    frames = blotches(seed, *size, times=max(indices) + 1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip.mp4"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, size)
        for frame in frames:
            writer.write(np.ascontiguousarray(frame[..., ::-1]))
        writer.release()
        file = path.read_bytes()
        capture, shown = cv2.VideoCapture(str(path)), []
        while (read := capture.read())[0]:
            shown.append(np.ascontiguousarray(read[1][..., ::-1]))
        capture.release()
    large = [Image.fromarray(shown[at]).resize(seen, Image.Resampling.BICUBIC) for at in indices]
    return Picture(file, np.stack([np.asarray(each) for each in large]))


def case(*messages: tuple[str, object], **settings: int) -> Case:
    """A case whose messages show pictures: what `conversation` takes, and `Picture`s."""
    seen: list[Picture] = []

    def told(piece: object) -> object:
        if isinstance(piece, list):
            return [told(each) for each in piece]
        if isinstance(piece, Picture):
            seen.append(piece)
            return piece.file
        return piece

    made = conversation(*[(role, told(content)) for role, content in messages])  # type: ignore[misc]
    return Case(
        made,
        images=tuple(each.pixels for each in seen if each.pixels.ndim == 3),
        videos=tuple(each.pixels for each in seen if each.pixels.ndim == 4),
        **settings,  # type: ignore[arg-type]
    )
