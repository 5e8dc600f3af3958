"""The tensor blob: one encoding of named tensors, the same bytes on every transport.

Layout: magic (4 bytes) | header length (uint32, little endian) | msgpack header |
padding | tensor 0 | padding | tensor 1 | ... Every tensor starts at a multiple of
64 bytes from the blob's start, so that a view of it is aligned when the blob is; in a
small blob, which travels inline and is not, at a multiple of 16.
The header is a list of (name, dtype, shape, offset) and a small map of strings. Data
is little endian and C contiguous. Decoding copies nothing and trusts nothing: every
length, offset and dtype is checked against the bytes that are there, and any fault is
a `DataLoss`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping

import ml_dtypes
import msgspec
import numpy as np

from antiphon.chunk import Tensor, Tensors
from antiphon.errors import DataLoss

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
    """One tensor in the header; `offset` counts from the blob's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What precedes the tensors' bytes."""

    entries: tuple[_Entry, ...]
    metadata: dict[str, str] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)


class Encoding:
    """Tensors laid out as a blob whose bytes are not written yet.

    Raises `ValueError` for a dtype or a size that the format has no place for:
    that is a fault of the caller, not of the wire.
    """

    def __init__(self, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
        arrays = [
            (name, np.ascontiguousarray(tensor).reshape(tensor.shape))
            for name, tensor in tensors.items()
        ]
        kept = _checked_metadata(metadata) if metadata else {}
        payload_bytes = sum([array.nbytes for _, array in arrays])
        most_bytes = _most_bytes(len(arrays), payload_bytes, kept)
        room = len(_encoder.encode(_Header(_entries(arrays, most_bytes), kept)))
        alignment = SMALL_ALIGNMENT if payload_bytes < SMALL_BYTES else ALIGNMENT
        entries, self.size_bytes = _layout(arrays, room, alignment)
        header = _encoder.encode(_Header(tuple(entries), kept))
        self._head = _PREFIX.pack(_MAGIC, len(header)) + header
        self._offsets = [entry.offset for entry in entries]
        self._arrays = [array.reshape(-1).view(np.uint8) for _, array in arrays]

    def write_into(self, buffer: memoryview) -> None:
        """Write the blob to the start of a writable buffer; padding stays as it was."""
        target = np.frombuffer(buffer, np.uint8)
        target[: len(self._head)] = np.frombuffer(self._head, np.uint8)
        for offset, array in zip(self._offsets, self._arrays, strict=True):
            target[offset : offset + array.nbytes] = array

    def to_bytes(self) -> bytes:
        """The blob."""
        return b"".join(self._pieces())

    def frames(self, frame_bytes: int) -> Iterator[list[memoryview]]:
        """The blob in order, `frame_bytes` at a time, uncopied; the last may be shorter."""
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
        end = len(self._head)
        pieces = [memoryview(self._head)]
        for offset, array in zip(self._offsets, self._arrays, strict=True):
            pieces += (memoryview(bytes(offset - end)), array.data)
            end = offset + array.nbytes
        return pieces


def encode(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """The blob of these tensors; b"" when there is nothing. Raises `ValueError`."""
    return Encoding(tensors, metadata).to_bytes() if tensors or metadata else b""


def decode(blob: bytes | bytearray | memoryview) -> dict[str, Tensor]:
    """Read-only views of the tensors in a blob; no copy. Raises `DataLoss`."""
    if not len(blob):
        return {}
    view = memoryview(blob).cast("B").toreadonly()
    tensors: dict[str, Tensor] = {}
    header = _read_header(view)
    # A tensor keeps the whole blob in memory, but only its own bytes are counted.
    unclaimed = len(view) - _PREFIX.size - _PREFIX.unpack_from(view)[1] - ALIGNMENT
    for entry in header.entries:
        if entry.name in tensors:
            raise DataLoss(f"blob: tensor {entry.name!r} comes twice")
        tensors[entry.name] = tensor = _view(view, entry)
        unclaimed -= tensor.nbytes + ALIGNMENT
    if unclaimed > 0:
        raise DataLoss(f"blob: at least {unclaimed} bytes belong to no tensor")
    return tensors


def read_metadata(blob: bytes | bytearray | memoryview) -> dict[str, str]:
    """A blob's metadata; empty when it has none. Raises `DataLoss`."""
    return _read_header(memoryview(blob).cast("B").toreadonly()).metadata if len(blob) else {}


def _checked_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    if _metadata_is_too_large(metadata):
        raise ValueError("the metadata is too large for a blob")
    return dict(metadata)


def _metadata_is_too_large(metadata: Mapping[str, str]) -> bool:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    return len(metadata) > MAX_METADATA_ENTRIES or size > MAX_METADATA_BYTES


def _most_bytes(tensors: int, payload_bytes: int, metadata: Mapping[str, str]) -> int:
    """At least the blob's size: no offset is larger, so none takes more room in the header."""
    around = ALIGNMENT + 2 * MAX_NAME_BYTES
    most_metadata = 2 * MAX_METADATA_BYTES if metadata else 0
    return payload_bytes + (tensors + 1) * around + most_metadata


def _entries(arrays: list[tuple[str, Tensor]], offset: int) -> tuple[_Entry, ...]:
    """Entries that all have the same offset, to learn how much room the header takes."""
    if len(arrays) > MAX_TENSORS:
        raise ValueError(f"at most {MAX_TENSORS} tensors in a blob, got {len(arrays)}")
    entries = []
    for name, array in arrays:
        if array.dtype not in _NAMES:
            raise ValueError(f"tensor {name!r}: dtype {array.dtype} has no place in a blob")
        if len(name.encode()) > MAX_NAME_BYTES or array.ndim > MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r}: name or number of dimensions too large")
        entries.append(_Entry(name, _NAMES[array.dtype], array.shape, offset))
    return tuple(entries)


def _layout(
    arrays: list[tuple[str, Tensor]], header_bytes: int, alignment: int
) -> tuple[list[_Entry], int]:
    """Where each tensor goes, and the blob's size in bytes."""
    end = _PREFIX.size + header_bytes
    entries = []
    for name, array in arrays:
        offset = -(-end // alignment) * alignment
        entries.append(_Entry(name, _NAMES[array.dtype], array.shape, offset))
        end = offset + array.nbytes
    return entries, end


def _read_header(view: memoryview) -> _Header:
    """The checked header of a blob."""
    if len(view) < _PREFIX.size:
        raise DataLoss(f"blob: {len(view)} bytes are too few for a header")
    magic, header_bytes = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise DataLoss("blob: does not start with the magic number")
    if header_bytes > min(MAX_HEADER_BYTES, len(view) - _PREFIX.size):
        raise DataLoss(f"blob: header of {header_bytes} bytes does not fit")
    try:
        header = _decoder.decode(view[_PREFIX.size : _PREFIX.size + header_bytes])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataLoss(f"blob: header is malformed: {error}") from error
    if len(header.entries) > MAX_TENSORS:
        raise DataLoss(f"blob: {len(header.entries)} tensors, at most {MAX_TENSORS} are allowed")
    if _metadata_is_too_large(header.metadata):
        raise DataLoss("blob: the metadata is too large")
    return header


def _view(view: memoryview, entry: _Entry) -> Tensor:
    """The tensor that an entry describes, if its bytes are all there."""
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise DataLoss(f"blob: tensor {entry.name!r} has the unknown dtype {entry.dtype!r}")
    if len(entry.name.encode()) > MAX_NAME_BYTES:
        raise DataLoss(f"blob: a tensor's name has more than {MAX_NAME_BYTES} bytes")
    if len(entry.shape) > MAX_DIMENSIONS or any(size < 0 for size in entry.shape):
        raise DataLoss(f"blob: tensor {entry.name!r} has the shape {entry.shape}")
    # An empty tensor has no bytes to check its other dimensions against.
    if math.prod(size or 1 for size in entry.shape) > MAX_EMPTY_SIZE and 0 in entry.shape:
        raise DataLoss(f"blob: tensor {entry.name!r} is empty and has the shape {entry.shape}")
    count = math.prod(entry.shape)
    end = entry.offset + count * dtype.itemsize
    if entry.offset < 0 or entry.offset % SMALL_ALIGNMENT or end > len(view):
        raise DataLoss(f"blob: tensor {entry.name!r} lies outside the {len(view)} bytes")
    return np.frombuffer(view[entry.offset : end], dtype=dtype).reshape(entry.shape)
