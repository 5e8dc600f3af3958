"""Decodes videos to frames, at a fixed rate and in the size that the model expects.

Like Qwen's own tools, this reads two frames per second and resizes them to the largest size
allowed, so that a long video never has to be in memory at full size. The checkpoint's video
processor then doesn't have to resize anything.
"""

from __future__ import annotations

import io
import os
from functools import partial

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor
from antiphon_services.thinker.mp4 import MAX_VIDEO_FRAMES, check_samples
from antiphon_services.thinker.vision import (
    FRAMES_PER_S,
    VIDEO,
    FramePace,
    Pixels,
    Sizes,
    Visual,
    broken,
)

# Set FFmpeg's log level to AV_LOG_QUIET, because it would otherwise print a line for each error in
# a file. OpenCV reads this variable when it opens the first video.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")

MAX_VIDEO_S = 120.0
"""The maximum length of a video in seconds. All of its frames are in memory at the same time."""

_MP4 = b"ftyp"


def measure_video(sizes: Sizes, pace: FramePace, file: Tensor, name: str) -> Visual:
    """Read the header and the first frame of an MP4 file. Raises `InvalidArgument` if they are
    invalid.
    """
    check_samples(file.tobytes(), name)
    capture = _open(file, name)
    total = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    rate = float(capture.get(cv2.CAP_PROP_FPS))
    if total < 1 or not rate > 0:
        raise InvalidArgument(f"{name}: has no frames", field=name)
    if total > MAX_VIDEO_FRAMES:
        raise InvalidArgument(
            f"{name}: has {total} frames; the maximum is {MAX_VIDEO_FRAMES}", field=name
        )
    if total / rate > MAX_VIDEO_S:
        raise InvalidArgument(
            f"{name}: is too long: {total / rate:.1f} s; the maximum is {MAX_VIDEO_S:g} s",
            field=name,
        )
    shown, first = capture.read()
    if not shown:
        raise InvalidArgument(f"{name}: has no frames", field=name)
    rows, columns = sizes.grid(first.shape[1], first.shape[0], name)
    indices = _sampled(total, rate, pace.frames)
    grid = (-(-len(indices) // pace.frames), rows, columns)
    size = (columns * sizes.side, rows * sizes.side)
    decoded = len(indices) * size[0] * size[1]
    return Visual(VIDEO, grid, pace.step, partial(_decode, file, name, indices, size), decoded)


def _sampled(total: int, rate: float, together: int) -> npt.NDArray[np.int64]:
    """Return the indices of the frames to sample. They are evenly spaced and, if possible, form
    complete groups of `together` frames.
    """
    wanted = min(max(int(total / rate * FRAMES_PER_S), together), total)
    wanted -= wanted % together if wanted > together else 0
    return np.linspace(0, total - 1, wanted).round().astype(np.int64)


def _decode(
    file: Tensor, name: str, indices: npt.NDArray[np.int64], size: tuple[int, int]
) -> Pixels:
    """Return frames [len(indices), height, width, 3] with the given `size` (width, height)."""
    capture = _open(file, name)
    frames: list[Pixels] = []
    try:
        wanted = set(indices.tolist())
        for at in range(int(indices[-1]) + 1):
            if not capture.grab():
                break
            if at in wanted:
                frames.append(_frame(capture.retrieve()[1], size))
    except Exception as error:
        raise broken(name, error) from error
    if len(frames) < len(indices):
        raise InvalidArgument(
            f"{name}: only {len(frames)} of the {len(indices)} required frames can be decoded",
            field=name,
        )
    return np.stack(frames)


def _frame(frame: Pixels, size: tuple[int, int]) -> Pixels:
    """Return a frame as RGB, resized to its final size."""
    image = Image.fromarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC))


def _open(file: Tensor, name: str) -> cv2.VideoCapture:
    """Open the file. Raises `InvalidArgument` if this fails.

    The file is only released by garbage collection. Calling OpenCV's `release` would crash the
    process, because it frees bytes that belong to Python without holding the GIL.
    """
    data = file.tobytes()
    # The library also accepts playlists, and would then fetch the files listed in them.
    if data[4:8] != _MP4:
        raise InvalidArgument(f"{name}: is not an MP4 file", field=name)
    try:
        capture = cv2.VideoCapture(io.BytesIO(data), cv2.CAP_FFMPEG, [])
    except Exception as error:
        raise broken(name, error) from error
    if not capture.isOpened():
        raise InvalidArgument(f"{name}: is not a readable MP4 file", field=name)
    return capture
