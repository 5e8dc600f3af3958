"""Determines the prompt positions that images and videos take up. Also prepares their pixels for
the model.

The number of positions can be determined from a file's header, so a prompt that is too long is
rejected before any pixels are decoded. Decoding doesn't run on the engine's thread. Afterwards, the
pixels are processed by the checkpoint's image and video processors, both with vLLM and with Hugging
Face. This module uses Hugging Face's own function to compute the sizes that these processors
choose.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import Conversation, ImagePart, VideoPart

# Pillow's warnings quote the file, which may contain any number of lines, and Python stores each of
# them.
warnings.filterwarnings("ignore", module=r"PIL\.")

MAX_PIXELS = 64_000_000
"""The maximum number of pixels in an image or a video frame. No camera produces larger images, so
they are treated as an attack.
"""

MAX_CONVERSATION_PIXELS = 256_000_000
"""The maximum total number of pixels in a conversation. Images count with their original size, and
all frames of a video count with their final size.

With vLLM, all of these pixels are in memory at the same time, at three bytes per pixel.
"""

FRAMES_PER_S = 2.0
"""The number of frames sampled per second of video."""

FORMATS = ("PNG", "JPEG", "WEBP")
_BACKGROUND = (255, 255, 255)
_EXIF = "exif"
_ORIENTATION = 0x0112
_TURNED = range(5, 9)

IMAGE: Literal["image"] = "image"
VIDEO: Literal["video"] = "video"

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Visual:
    """An image or a video in a conversation. The values are taken from its file header.

    `grid` contains the number of time steps, rows and columns of its positions. Consecutive time
    steps are `step` positions apart. `decoded` is the total number of pixels in memory, counting
    all frames. `pixels` decodes the file, which is slow. It returns an upright RGB image on a white
    background, or video frames [frames, height, width, 3]. It raises `InvalidArgument` if the file
    can't be decoded.
    """

    kind: Literal["image", "video"]
    grid: tuple[int, int, int]
    step: int
    pixels: Callable[[], Image.Image | Pixels]
    decoded: int

    @property
    def positions(self) -> int:
        """The number of prompt positions."""
        times, rows, columns = self.grid
        return times * rows * columns


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size limits of a checkpoint's processor: the side length, in pixels, of the square that
    each position covers, and the minimum and maximum number of pixels.
    """

    side: int
    least: int
    most: int

    def grid(self, width: int, height: int, name: str) -> tuple[int, int]:
        """Return the number of rows and columns. Raises `InvalidArgument` if the model doesn't
        support this shape.
        """
        if width * height > MAX_PIXELS:
            raise InvalidArgument(
                f"{name}: has {width} x {height} pixels; the maximum is {MAX_PIXELS} pixels",
                field=name,
            )
        try:
            wanted = smart_resize(height, width, self.side, self.least, self.most)
        except ValueError as error:
            raise InvalidArgument(f"{name}: {error}", field=name) from error
        return wanted[0] // self.side, wanted[1] // self.side


@dataclass(frozen=True, slots=True)
class FramePace:
    """The mapping from time to positions. Each time step of the grid covers `frames` frames, and
    consecutive time steps are `step` positions apart.
    """

    frames: int
    step: int


Measure = Callable[[Tensor, str], Visual]
"""A function that reads a file's header. Its arguments are the file and its name, and it raises
`InvalidArgument` if the file is invalid.
"""


@dataclass(frozen=True, slots=True)
class VisionFrontEnd:
    """A checkpoint's vision support. For each media type, it specifies how a file is measured and
    how many files a conversation may contain.
    """

    images: Measure
    videos: Measure
    max_images: int
    max_videos: int

    def look(self, conversation: Conversation) -> tuple[Visual, ...]:
        """Return the images and videos in the conversation, in the order of its parts.

        This only reads headers. Raises `InvalidArgument` with the field `messages`, `image.N` or
        `video.N`. If the total exceeds `MAX_CONVERSATION_PIXELS`, the error names the first item
        beyond the limit.
        """
        counts = {
            IMAGE: (len(conversation.images), self.max_images),
            VIDEO: (len(conversation.videos), self.max_videos),
        }
        for kind, (count, most) in counts.items():
            if count > most:
                raise InvalidArgument(
                    f"messages: contain {count} {kind}s; the maximum is {most}; if the "
                    f"checkpoint supports more and the engine is vLLM, increase {kind} in "
                    "engine_args.limit_mm_per_prompt",
                    field="messages",
                )
        return tuple(self._look(conversation))

    def _look(self, conversation: Conversation) -> Iterator[Visual]:
        decoded = 0
        for message in conversation.messages:
            for part in message.parts:
                if not isinstance(part, ImagePart | VideoPart):
                    continue
                if message.role != "user":
                    raise InvalidArgument(
                        "messages: images and videos are only allowed in user messages, got "
                        f"the role {message.role}",
                        field="messages",
                    )
                if isinstance(part, ImagePart):
                    name = f"image.{part.index}"
                    visual = self.images(conversation.images[part.index], name)
                else:
                    name = f"video.{part.index}"
                    visual = self.videos(conversation.videos[part.index], name)
                decoded += visual.decoded
                if decoded > MAX_CONVERSATION_PIXELS:
                    raise InvalidArgument(
                        f"{name}: together with it, the images and videos of the conversation "
                        f"have {decoded} pixels; the maximum is {MAX_CONVERSATION_PIXELS}; send "
                        "smaller or fewer ones",
                        field=name,
                    )
                yield visual


def measure_image(sizes: Sizes, file: Tensor, name: str) -> Visual:
    """Read the header of an image file. Raises `InvalidArgument` if it is invalid."""
    image = _open(file, name)
    width, height = image.size
    try:
        # Don't search beyond the header, because this would decode a whole PNG file.
        turned = _EXIF in image.info and image.getexif().get(_ORIENTATION) in _TURNED
    except Exception as error:
        raise broken(name, error) from error
    if turned:
        width, height = height, width
    grid = (1, *sizes.grid(width, height, name))
    return Visual(IMAGE, grid, 1, partial(decode_image, file, name), width * height)


def decode_image(file: Tensor, name: str) -> Image.Image:
    """Decode an image. The result is upright and RGB, on a white background. Raises
    `InvalidArgument` if the image can't be decoded.
    """
    image = _open(file, name)
    try:
        upright = ImageOps.exif_transpose(image) if _EXIF in image.info else image
        if not upright.has_transparency_data:
            return upright.convert("RGB")
        clear = upright.convert("RGBA")
    except Exception as error:
        raise broken(name, error) from error
    flat = Image.new("RGB", clear.size, _BACKGROUND)
    flat.paste(clear, mask=clear.getchannel("A"))
    return flat


def _open(file: Tensor, name: str) -> Image.Image:
    """Open an image, but only read its header. Raises `InvalidArgument` if it is invalid."""
    try:
        return Image.open(io.BytesIO(file.tobytes()), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise InvalidArgument(
            f"{name}: is not a {' or '.join(FORMATS)} file", field=name
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidArgument(
            f"{name}: has more than the maximum of {MAX_PIXELS} pixels", field=name
        ) from error
    except Exception as error:
        raise broken(name, error) from error


def broken(name: str, error: Exception) -> InvalidArgument:
    """Return the error for a file that a decoder couldn't read. This accepts any exception, because
    the exceptions that decoders raise aren't documented.
    """
    return InvalidArgument(f"{name}: can't be decoded: {error}", field=name)
