"""The tensor blob, an encoding for named tensors that is used by all transports.

A blob consists of magic bytes (4 bytes), the length of the header (uint32, little endian), a
msgpack header, and the tensors. Each tensor is preceded by padding, so that it starts at a multiple
of 64 bytes from the start of the blob. If the blob is aligned, views of its tensors are aligned as
well. Small blobs are sent inline and aren't aligned, so their tensors only start at multiples of 16
bytes.

The header contains a list of (name, dtype, shape, offset), and a small map of strings. The data is
little endian and C contiguous. Decoding doesn't copy any data. It compares every length, offset and
dtype with the available bytes and raises `DataLoss` if they don't match.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor, Tensors

ALIGNMENT = 64
SMALL_ALIGNMENT = 16
SMALL_BYTES = 4096
MAX_TENSORS = 4096
MAX_NAME_BYTES = 128
MAX_DIMENSIONS = 8
MAX_EMPTY_SIZE = 1 << 32
MAX_HEADER_BYTES = 1 << 20
MAX_METADATA_ENTRIES = 64
MAX_METADATA_BYTES = 4096

# Small layouts are cached, because most of an edge's chunks have the same shapes.
KEPT = 1024
KEPT_TENSORS = 8
KEPT_HEADER_BYTES = 512

_MAGIC = b"ATB1"
_PREFIX = struct.Struct("<4sI")
_DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name)
    for name in (
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32",
        "uint64", "int64", "float16", "float32", "float64",
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor's entry in the header. `offset` is relative to the start of the blob."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a blob's header."""

    entries: tuple[_Entry, ...]
    metadata: dict[str, str] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)


_Signature = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]
"""The name, dtype and shape of each tensor. They determine the layout of a blob."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A blob without its tensors. What remains is the head and the padding before each tensor."""

    head: bytes
    paddings: tuple[bytes, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor from a validated header. It ends at byte `end` of the blob."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    end: int


class Encoding:
    """A blob with a computed layout, whose bytes haven't been written yet.

    Raises `ValueError` if the format doesn't support a dtype or a size. This is an error by the
    caller rather than a problem with the connection.
    """

    def __init__(self, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
        arrays = self._arrays = [
            each if each.flags.c_contiguous else np.ascontiguousarray(each)
            for each in tensors.values()
        ]
        signature = tuple(
            [(n, each.dtype, each.shape) for n, each in zip(tensors, arrays, strict=True)]
        )
        if metadata or len(signature) > KEPT_TENSORS:
            self._layout = _layout(signature, _checked_metadata(metadata or {}))
        else:
            self._layout = _kept_layout(signature)
        self.size_bytes = self._layout.size_bytes

    def write_into(self, buffer: memoryview) -> None:
        """Write the blob to the start of a writable buffer. Padding bytes are left as they are."""
        target = np.frombuffer(buffer, np.uint8)
        head = self._layout.head
        target[: len(head)] = np.frombuffer(head, np.uint8)
        end = len(head)
        for padding, array in zip(self._layout.paddings, self._arrays, strict=True):
            start, end = end + len(padding), end + len(padding) + array.nbytes
            target[start:end] = _bytes_of(array)

    def to_bytes(self) -> bytes:
        """Return the blob as bytes."""
        if self.size_bytes > SMALL_BYTES:
            return b"".join(self._pieces())
        pieces = [self._layout.head]
        for padding, array in zip(self._layout.paddings, self._arrays, strict=True):
            pieces += (padding, array.tobytes())
        return b"".join(pieces)

    def frames(self, frame_bytes: int) -> Iterator[list[memoryview]]:
        """Yield the blob in pieces of `frame_bytes` bytes, without copying it. The last piece may
        be shorter.
        """
        frame: list[memoryview] = []
        room = frame_bytes
        for piece in self._pieces():
            while len(piece) >= room:
                yield [*frame, piece[:room]]
                piece, frame, room = piece[room:], [], frame_bytes
            if len(piece):
                frame.append(piece)
                room -= len(piece)
        if frame:
            yield frame

    def _pieces(self) -> list[memoryview]:
        pieces = [memoryview(self._layout.head)]
        for padding, array in zip(self._layout.paddings, self._arrays, strict=True):
            pieces += (memoryview(padding), _bytes_of(array).data)
        return pieces


def encode(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the blob for these tensors, or b"" if there are no tensors. Raises `ValueError` if the
    format doesn't support one of them.
    """
    return Encoding(tensors, metadata).to_bytes() if tensors or metadata else b""


def decode(blob: bytes | bytearray | memoryview) -> dict[str, Tensor]:
    """Return read-only views of a blob's tensors, without copying any data. Raises `DataLoss` if
    the blob is malformed.
    """
    size = len(blob)
    if not size:
        return {}
    view = memoryview(blob).cast("B").toreadonly()
    header = _header_bytes(view)
    places = (_kept_places if len(header) <= KEPT_HEADER_BYTES else _places)(header)
    tensors: dict[str, Tensor] = {}
    # A tensor keeps the whole blob alive, but only its own size is counted. For this reason, the
    # number of bytes that don't belong to any tensor is limited.
    unclaimed = size - _PREFIX.size - len(header) - ALIGNMENT
    for place in places:
        if place.end > size:
            raise DataLoss(f"blob: tensor {place.name!r} lies outside the {size} bytes")
        data = view[place.offset : place.end]
        tensors[place.name] = np.frombuffer(data, place.dtype).reshape(place.shape)
        unclaimed -= len(data) + ALIGNMENT
    if unclaimed > 0:
        raise DataLoss(f"blob: at least {unclaimed} bytes belong to no tensor")
    return tensors


def read_metadata(blob: bytes | bytearray | memoryview) -> dict[str, str]:
    """Return a blob's metadata, which may be empty. Raises `DataLoss` if the blob is malformed."""
    if not len(blob):
        return {}
    return _read_header(_header_bytes(memoryview(blob).cast("B").toreadonly())).metadata


def _checked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    if _metadata_is_too_large(metadata):
        raise ValueError("the metadata is too large for a blob")
    return dict(metadata)


def _metadata_is_too_large(metadata: Mapping[str, str]) -> bool:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    return len(metadata) > MAX_METADATA_ENTRIES or size > MAX_METADATA_BYTES


def _most_bytes(tensors: int, payload_bytes: int, metadata: Mapping[str, str]) -> int:
    """Return an upper bound for the size of the blob, which is also an upper bound for the offsets
    in the header.
    """
    around = ALIGNMENT + 2 * MAX_NAME_BYTES
    most_metadata = 2 * MAX_METADATA_BYTES if metadata else 0
    return payload_bytes + (tensors + 1) * around + most_metadata


def _layout(signature: _Signature, metadata: dict[str, str]) -> _Layout:
    """Compute the layout. Raises `ValueError` if the format doesn't support a tensor."""
    _check(signature)
    sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in signature]
    most_bytes = _most_bytes(len(signature), sum(sizes), metadata)
    # First encode the header with the largest possible offsets to find out how large it is.
    header = _Header(_entries(signature, [most_bytes] * len(signature)), metadata)
    end = _PREFIX.size + len(_encoder.encode(header))
    alignment = SMALL_ALIGNMENT if sum(sizes) < SMALL_BYTES else ALIGNMENT
    offsets = []
    for size in sizes:
        offsets.append(-(-end // alignment) * alignment)
        end = offsets[-1] + size
    header_bytes = _encoder.encode(_Header(_entries(signature, offsets), metadata))
    head = _PREFIX.pack(_MAGIC, len(header_bytes)) + header_bytes
    ends = (len(head), *(offset + size for offset, size in zip(offsets, sizes, strict=True)))
    paddings = tuple(bytes(start - before) for start, before in zip(offsets, ends, strict=False))
    return _Layout(head, paddings, end)


@lru_cache(maxsize=KEPT)
def _kept_layout(signature: _Signature) -> _Layout:
    return _layout(signature, {})


def _check(signature: _Signature) -> None:
    """Raise `ValueError` if the format doesn't support one of the tensors."""
    if len(signature) > MAX_TENSORS:
        raise ValueError(f"at most {MAX_TENSORS} tensors in a blob, got {len(signature)}")
    for name, dtype, shape in signature:
        if dtype not in _NAMES:
            raise ValueError(f"tensor {name!r}: dtype {dtype} has no place in a blob")
        if len(name.encode()) > MAX_NAME_BYTES or len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r}: name or number of dimensions too large")


def _entries(signature: _Signature, offsets: Sequence[int]) -> tuple[_Entry, ...]:
    placed = zip(signature, offsets, strict=True)
    return tuple(_Entry(name, _NAMES[dtype], shape, at) for (name, dtype, shape), at in placed)


def _bytes_of(array: Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous tensor without copying them. This works even for bfloat16,
    which doesn't support the buffer interface.
    """
    return array.reshape(-1).view(np.uint8)


def _header_bytes(view: memoryview) -> bytes:
    """Return a blob's header without decoding it."""
    if len(view) < _PREFIX.size:
        raise DataLoss(f"blob: {len(view)} bytes are too few for a header")
    magic, header_bytes = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise DataLoss("blob: does not start with the magic number")
    if header_bytes > min(MAX_HEADER_BYTES, len(view) - _PREFIX.size):
        raise DataLoss(f"blob: header of {header_bytes} bytes does not fit")
    return bytes(view[_PREFIX.size : _PREFIX.size + header_bytes])


def _read_header(header_bytes: bytes) -> _Header:
    """Return a blob's header after validating it."""
    try:
        header = _decoder.decode(header_bytes)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataLoss(f"blob: header is malformed: {error}") from error
    if len(header.entries) > MAX_TENSORS:
        raise DataLoss(f"blob: {len(header.entries)} tensors, at most {MAX_TENSORS} are allowed")
    if _metadata_is_too_large(header.metadata):
        raise DataLoss("blob: the metadata is too large")
    return header


def _places(header_bytes: bytes) -> tuple[_Place, ...]:
    """Return the tensors that a header describes. They are validated as far as possible without
    looking at the data.
    """
    places = {}
    for entry in _read_header(header_bytes).entries:
        if entry.name in places:
            raise DataLoss(f"blob: tensor {entry.name!r} comes twice")
        places[entry.name] = _place(entry)
    return tuple(places.values())


_kept_places = lru_cache(maxsize=KEPT)(_places)


def _place(entry: _Entry) -> _Place:
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise DataLoss(f"blob: tensor {entry.name!r} has the unknown dtype {entry.dtype!r}")
    if len(entry.name.encode()) > MAX_NAME_BYTES:
        raise DataLoss(f"blob: a tensor's name has more than {MAX_NAME_BYTES} bytes")
    if len(entry.shape) > MAX_DIMENSIONS or any(size < 0 for size in entry.shape):
        raise DataLoss(f"blob: tensor {entry.name!r} has the shape {entry.shape}")
    # If a tensor has no bytes, its other dimensions have to be limited explicitly.
    if math.prod(size or 1 for size in entry.shape) > MAX_EMPTY_SIZE and 0 in entry.shape:
        raise DataLoss(f"blob: tensor {entry.name!r} is empty and has the shape {entry.shape}")
    if entry.offset < 0 or entry.offset % SMALL_ALIGNMENT:
        raise DataLoss(f"blob: tensor {entry.name!r} lies outside, at byte {entry.offset}")
    end = entry.offset + math.prod(entry.shape) * dtype.itemsize
    return _Place(entry.name, dtype, entry.shape, entry.offset, end)
