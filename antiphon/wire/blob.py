"""The tensor blob: one encoding of named tensors, the same bytes on every transport.

Layout: magic (4 bytes) | header length (uint32, little endian) | msgpack header |
padding | tensor 0 | padding | tensor 1 | ... Every tensor starts at a multiple of
64 bytes from the blob's start, so that a view of it is aligned when the blob is.
The header is a list of (name, dtype, shape, offset). Data is little endian and C
contiguous. Decoding copies nothing and trusts nothing: every length, offset and
dtype is checked against the bytes that are there, and any fault is a `DataLoss`.
"""

from __future__ import annotations

import math
import struct

import ml_dtypes
import msgspec
import numpy as np

from antiphon.chunk import Tensor, Tensors
from antiphon.errors import DataLoss

ALIGNMENT = 64
MAX_TENSORS = 4096
MAX_NAME_BYTES = 128
MAX_DIMENSIONS = 8
MAX_HEADER_BYTES = 1 << 20

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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[_Entry, ...])


def encode(tensors: Tensors) -> bytes:
    """The blob of these tensors; b"" when there are none.

    Raises `ValueError` for a dtype or a size that the format has no place for:
    that is a fault of the caller, not of the wire.
    """
    if not tensors:
        return b""
    arrays = [
        (name, np.ascontiguousarray(tensor).reshape(tensor.shape))
        for name, tensor in tensors.items()
    ]
    header = _header(arrays)
    entries, total = _layout(arrays, len(header))
    header = _encoder.encode(entries)
    blob = bytearray(total)
    _PREFIX.pack_into(blob, 0, _MAGIC, len(header))
    blob[_PREFIX.size : _PREFIX.size + len(header)] = header
    for entry, (_, array) in zip(entries, arrays, strict=True):
        blob[entry.offset : entry.offset + array.nbytes] = array.tobytes()
    return bytes(blob)


def decode(blob: bytes | bytearray | memoryview) -> dict[str, Tensor]:
    """Read-only views of the tensors in a blob; no copy. Raises `DataLoss`."""
    if not len(blob):
        return {}
    view = memoryview(blob).cast("B").toreadonly()
    entries = _read_header(view)
    tensors: dict[str, Tensor] = {}
    for entry in entries:
        if entry.name in tensors:
            raise DataLoss(f"blob: tensor {entry.name!r} comes twice")
        tensors[entry.name] = _view(view, entry)
    return tensors


def _header(arrays: list[tuple[str, Tensor]]) -> bytes:
    """A header with the largest offsets possible, to learn how much room it takes."""
    if len(arrays) > MAX_TENSORS:
        raise ValueError(f"at most {MAX_TENSORS} tensors in a blob, got {len(arrays)}")
    entries = []
    for name, array in arrays:
        if array.dtype not in _NAMES:
            raise ValueError(f"tensor {name!r}: dtype {array.dtype} has no place in a blob")
        if len(name.encode()) > MAX_NAME_BYTES or array.ndim > MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r}: name or number of dimensions too large")
        entries.append(_Entry(name, _NAMES[array.dtype], array.shape, 1 << 62))
    return _encoder.encode(entries)


def _layout(arrays: list[tuple[str, Tensor]], header_bytes: int) -> tuple[list[_Entry], int]:
    """Where each tensor goes, and the blob's size in bytes."""
    end = _PREFIX.size + header_bytes
    entries = []
    for name, array in arrays:
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        entries.append(_Entry(name, _NAMES[array.dtype], array.shape, offset))
        end = offset + array.nbytes
    return entries, end


def _read_header(view: memoryview) -> tuple[_Entry, ...]:
    """The checked header of a blob."""
    if len(view) < _PREFIX.size:
        raise DataLoss(f"blob: {len(view)} bytes are too few for a header")
    magic, header_bytes = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise DataLoss("blob: does not start with the magic number")
    if header_bytes > min(MAX_HEADER_BYTES, len(view) - _PREFIX.size):
        raise DataLoss(f"blob: header of {header_bytes} bytes does not fit")
    try:
        entries = _decoder.decode(view[_PREFIX.size : _PREFIX.size + header_bytes])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataLoss(f"blob: header is malformed: {error}") from error
    if len(entries) > MAX_TENSORS:
        raise DataLoss(f"blob: {len(entries)} tensors, at most {MAX_TENSORS} are allowed")
    return entries


def _view(view: memoryview, entry: _Entry) -> Tensor:
    """The tensor that an entry describes, if its bytes are all there."""
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise DataLoss(f"blob: tensor {entry.name!r} has the unknown dtype {entry.dtype!r}")
    if len(entry.shape) > MAX_DIMENSIONS or any(size < 0 for size in entry.shape):
        raise DataLoss(f"blob: tensor {entry.name!r} has the shape {entry.shape}")
    count = math.prod(entry.shape)
    end = entry.offset + count * dtype.itemsize
    if entry.offset < 0 or entry.offset % ALIGNMENT or end > len(view):
        raise DataLoss(f"blob: tensor {entry.name!r} lies outside the {len(view)} bytes")
    return np.frombuffer(view[entry.offset : end], dtype=dtype).reshape(entry.shape)
