"""Images and videos sent by clients. Files are passed on unchanged, and only their headers are
read.

Images that are too large are refused at this point, before a decoder opens them. The stage that
decodes them has limits of its own, which also apply to videos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor
from antiphon_gateway.media.data_url import data_of_url, file_bytes
from antiphon_gateway.media.image_size import (
    MAX_CHUNKS,
    MAX_SCANS,
    MAX_SEGMENTS,
    jpeg_scans,
    jpeg_segments,
    jpeg_size,
    png_chunks,
    png_size,
    webp_size,
)
from antiphon_gateway.media.remote import RemoteUrl
from antiphon_gateway.threads import SizedThreads

IMAGE, VIDEO = "image", "video"
"""The types of input, under the names that stages use in `Describe`."""


@dataclass(frozen=True, slots=True)
class File:
    """An image or video file as it was received. This can be bytes, base64 text or the file's
    location. `field` is its path in the request.
    """

    field: str
    data: bytes | str | RemoteUrl


@dataclass(frozen=True, slots=True)
class _Kind:
    """The media types of data URLs and the first bytes of a file in each format."""

    media_types: frozenset[str]
    formats: Mapping[str, Callable[[bytes], bool]]


_KINDS = {
    IMAGE: _Kind(
        frozenset({"image/png", "image/jpeg", "image/jpg", "image/webp"}),
        {
            "PNG": lambda head: head.startswith(b"\x89PNG\r\n\x1a\n"),
            "JPEG": lambda head: head.startswith(b"\xff\xd8\xff"),
            "WebP": lambda head: head.startswith(b"RIFF") and head[8:12] == b"WEBP",
        },
    ),
    VIDEO: _Kind(frozenset({"video/mp4"}), {"MP4": lambda head: head[4:8] == b"ftyp"}),
}
_HEAD_BYTES = 16
_SIZES = {"PNG": png_size, "JPEG": jpeg_size, "WebP": webp_size}
MAX_PIXELS = 64_000_000
"""The maximum number of pixels in an image. A stage may have a lower limit."""


def read_data_url(url: str, kind: str, field: str) -> File:
    """Return the file in a data URL. Its base64 text isn't decoded yet. Raises the errors of
    `data_of_url`.
    """
    return File(field, data_of_url(url, kind, _KINDS[kind].media_types, field))


def image_media_type(file: bytes) -> str:
    """Return the media type of an image file, which is determined from its first bytes. If the
    format isn't known, returns an empty string.
    """
    head = file[:_HEAD_BYTES]
    formats = _KINDS[IMAGE].formats.items()
    return next((f"image/{name.lower()}" for name, begins in formats if begins(head)), "")


async def read_files(files: Sequence[File], kind: str, threads: SizedThreads) -> tuple[Tensor, ...]:
    """Return the bytes of each file as a uint8 vector. Remote files must have been fetched before.

    If a file is empty, isn't valid base64, or has an unknown format or exceeds the limits of its
    format, `InvalidArgument` is raised with the field.
    """
    found = []
    for file in files:
        size = 0 if isinstance(file.data, RemoteUrl) else len(file.data)
        found.append(np.frombuffer(await threads.run(size, _read, file, kind), dtype=np.uint8))
    return tuple(found)


def _read(file: File, kind: str) -> bytes:
    field = file.field
    data = file_bytes(file.data, field)
    formats = _KINDS[kind].formats
    name = next((name for name, begins in formats.items() if begins(data[:_HEAD_BYTES])), "")
    if not name:
        raise InvalidArgument(f"{field}: is not a {' or '.join(formats)} file", field=field)
    if name in _SIZES:
        _check_size(data, name, field)
    return data


def _check_size(data: bytes, name: str, field: str) -> None:
    """Raise an error if an image's header declares a size that is too large or doesn't declare
    one.
    """
    _check_pieces(data, name, field)
    size = _SIZES[name](data)
    if size is None:
        raise InvalidArgument(
            f"{field}: is a {name} file without dimensions in its header", field=field
        )
    if size.width * size.height > MAX_PIXELS:
        raise InvalidArgument(
            f"{field}: has {size.width} x {size.height} pixels; the maximum is {MAX_PIXELS} pixels",
            field=field,
        )
    if name == "JPEG" and (scans := jpeg_scans(data)) > MAX_SCANS:
        raise InvalidArgument(
            f"{field}: has {scans} scans; the maximum is {MAX_SCANS}", field=field
        )


def _check_pieces(data: bytes, name: str, field: str) -> None:
    """Raise an error if an image file consists of so many pieces that a decoder would need seconds
    to process them.
    """
    counts: list[tuple[str, int, int]] = []
    if name == "JPEG":
        counts.append(("segments before its first scan", jpeg_segments(data), MAX_SEGMENTS))
    elif name == "PNG":
        chunks = png_chunks(data)
        counts.append(("chunks", chunks.total(), MAX_CHUNKS))
        # Decoders decompress each of them.
        counts.append(("color profiles (iCCP)", chunks[b"iCCP"], 1))
    for what, found, most in counts:
        if found > most:
            raise InvalidArgument(
                f"{field}: is a {name} file with more than {most} {what}; the maximum is {most}",
                field=field,
            )
