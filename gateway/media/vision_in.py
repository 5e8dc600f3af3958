"""Images and videos from a client: files as they came, looked at just enough to know their kind.

They go on as they are. The stage that reads them bounds what comes of a small file, and its
model says what to make of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.chunk import Tensor
from antiphon.errors import InvalidArgument
from gateway.media.data_url import data_of_url, file_bytes
from gateway.media.remote import RemoteUrl

IMAGE, VIDEO = "image", "video"
"""Kinds of input, as stages name them in `Describe`."""


@dataclass(frozen=True, slots=True)
class File:
    """An image or video file as it came: bytes, base64 text, or where it is. `field` is its
    path."""

    field: str
    data: bytes | str | RemoteUrl


@dataclass(frozen=True, slots=True)
class _Kind:
    """Media types of data URLs, and how a file of each format begins."""

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


def read_data_url(url: str, kind: str, field: str) -> File:
    """The file in a data URL; its base64 is not decoded yet. Raises what `data_of_url` raises."""
    return File(field, data_of_url(url, kind, _KINDS[kind].media_types, field))


def image_media_type(file: bytes) -> str:
    """The media type of an image file, by how it begins; "" when it is of no known format."""
    head = file[:_HEAD_BYTES]
    formats = _KINDS[IMAGE].formats.items()
    return next((f"image/{name.lower()}" for name, begins in formats if begins(head)), "")


def read_files(files: Sequence[File], kind: str) -> tuple[Tensor, ...]:
    """The bytes of each file, uint8 vectors. What is somewhere else was fetched.

    Decoding base64 takes long: call it off the event loop. Raises `InvalidArgument` with the
    field of the file that is empty, no base64 or of no known format.
    """
    return tuple(np.frombuffer(_read(file, kind), dtype=np.uint8) for file in files)


def _read(file: File, kind: str) -> bytes:
    field = file.field
    data = file_bytes(file.data, field)
    formats = _KINDS[kind].formats
    if not any(begins(data[:_HEAD_BYTES]) for begins in formats.values()):
        raise InvalidArgument(f"{field}: is no {' or '.join(formats)} file", field=field)
    return data
