from __future__ import annotations

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from antiphon.errors import DataLoss
from antiphon.wire import blob

DTYPES = [np.dtype(name) for name in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32",
          "uint64", "int64", "float16", "float32", "float64")]  # fmt: skip
DTYPES.append(np.dtype(ml_dtypes.bfloat16))
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
SAMPLE = blob.encode({"codes": np.arange(32, dtype=np.uint16).reshape(2, 16), "x": np.array(1.5)})


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, np.ndarray]:
    names = draw(st.lists(st.text(max_size=10), unique=True, max_size=4))
    found = {}
    for name in names:
        dtype, shape = draw(st.sampled_from(DTYPES)), draw(SHAPES)
        size = int(np.prod(shape)) * dtype.itemsize
        data = draw(st.binary(min_size=size, max_size=size))
        found[name] = np.frombuffer(data, dtype=np.uint8).view(dtype).reshape(shape)
    return found


@given(tensors())
@settings(max_examples=200)
def test_blob_round_trip_keeps_every_byte_and_aligns(given_tensors: dict[str, np.ndarray]) -> None:
    encoded = blob.encode(given_tensors)
    decoded = blob.decode(encoded)
    assert list(decoded) == list(given_tensors)
    for name, tensor in given_tensors.items():
        assert decoded[name].dtype == tensor.dtype
        assert decoded[name].shape == tensor.shape
        assert decoded[name].tobytes() == tensor.tobytes()


@pytest.mark.parametrize(("rows", "alignment"), [(1, blob.SMALL_ALIGNMENT), (100, blob.ALIGNMENT)])
def test_blob_tensors_are_aligned_and_read_only(rows: int, alignment: int) -> None:
    encoded = blob.encode({"x": np.zeros((rows, 64)), "y": np.zeros(3, np.uint8)})
    buffer = np.frombuffer(encoded, np.uint8)
    for tensor in blob.decode(encoded).values():
        assert (tensor.ctypes.data - buffer.ctypes.data) % alignment == 0
        with pytest.raises(ValueError, match="read-only"):
            tensor[...] = 0


def test_blob_takes_tensors_that_are_not_contiguous() -> None:
    tensor = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::3]
    np.testing.assert_array_equal(blob.decode(blob.encode({"t": tensor}))["t"], tensor)


@given(st.binary(max_size=200))
@settings(max_examples=2000)
@example(b"ATB1")
@example(b"ATB1\xff\xff\xff\xff")
def test_blob_raises_only_data_loss_when_bytes_are_arbitrary(data: bytes) -> None:
    try:
        blob.decode(data)
    except DataLoss:
        return
    assert not data


@given(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255), st.integers(0, len(SAMPLE)))
@settings(max_examples=2000)
def test_blob_raises_only_data_loss_when_a_blob_is_damaged(at: int, flip: int, cut: int) -> None:
    damaged = bytearray(SAMPLE)
    damaged[at] ^= flip
    for data in (bytes(damaged), bytes(damaged[:cut])):
        try:
            decoded = blob.decode(data)
        except DataLoss:
            continue
        assert all(tensor.nbytes <= len(data) for tensor in decoded.values())


@pytest.mark.parametrize("dtype", ["O", "U3", "datetime64[s]", "complex64"])
def test_blob_encode_raises_when_the_dtype_has_no_place(dtype: str) -> None:
    with pytest.raises(ValueError, match="dtype"):
        blob.encode({"t": np.zeros(1, dtype=dtype)})


def test_blob_raises_when_a_tensor_comes_twice() -> None:
    twice = blob.encode({"aa": np.zeros(1), "ab": np.zeros(1)}).replace(b"ab", b"aa")
    with pytest.raises(DataLoss, match="twice"):
        blob.decode(twice)


@given(tensors(), st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=8))
@settings(max_examples=100)
def test_blob_ways_of_writing_agree(
    given_tensors: dict[str, np.ndarray], metadata: dict[str, str]
) -> None:
    encoding = blob.Encoding(given_tensors, metadata)
    whole = encoding.to_bytes()
    assert len(whole) == encoding.size_bytes
    buffer = bytearray(b"\xff" * (len(whole) + 7))
    encoding.write_into(memoryview(buffer))
    assert blob.read_metadata(buffer) == metadata
    for name, tensor in blob.decode(buffer).items():
        assert tensor.tobytes() == given_tensors[name].tobytes()
    for size in (7, 64, len(whole)):
        frames = [b"".join(pieces) for pieces in encoding.frames(size)]
        assert b"".join(frames) == whole
        assert all(len(frame) == size for frame in frames[:-1])


@pytest.mark.parametrize(
    "metadata", [{str(n): "" for n in range(65)}, {"k": "v" * 4096}], ids=["entries", "bytes"]
)
def test_blob_refuses_metadata_over_the_limits(metadata: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        blob.encode({"t": np.zeros(1)}, metadata)
    header = msgspec.msgpack.encode([[], metadata])
    with pytest.raises(DataLoss, match="metadata"):
        blob.decode(b"ATB1" + len(header).to_bytes(4, "little") + header)


@pytest.mark.parametrize("shape", [(0, 1 << 62, 1 << 62), (1 << 63, 0), ((1 << 64) - 1, 0)])
def test_blob_raises_data_loss_when_an_empty_tensor_has_huge_dimensions(
    shape: tuple[int, ...],
) -> None:
    header = msgspec.msgpack.encode([[("x", "uint8", shape, 64)], {}])
    data = b"ATB1" + len(header).to_bytes(4, "little") + header
    with pytest.raises(DataLoss, match="empty"):
        blob.decode(data.ljust(128, b"\0"))


def raw(*entries: tuple[str, str, tuple[int, ...], int], size: int = 256) -> bytes:
    """A blob whose header says what it likes."""
    header = msgspec.msgpack.encode([list(entries), {}])
    head = b"ATB1" + len(header).to_bytes(4, "little") + header
    return head.ljust(max(size, len(head)), b"\0")


@pytest.mark.parametrize(
    ("blob_", "match"),
    [
        (raw(("x" * 129, "uint8", (1,), 192)), "128 bytes"),
        (raw(("x", "uint8", (1,) * 9, 64)), "shape"),
        (raw(("x", "uint8", (-1,), 64)), "shape"),
        (raw(("x", "uint8", (256,), 64)), "outside"),
        (raw(("x", "uint8", (8,), 249)), "outside"),
        (raw(("x", "uint8", (8,), -16)), "outside"),
        (raw(("x", "uint8", (8,), 63)), "outside"),
        (raw(("x", "complex64", (1,), 64)), "unknown dtype"),
        (raw(("x", "uint8", (0, 1 << 33), 64)), "empty"),
        (raw(("x", "uint8", (0,), 64), size=4096), "belong to no tensor"),
        (raw(size=4096), "belong to no tensor"),
        (raw(*((str(n), "uint8", (0,), 0) for n in range(blob.MAX_TENSORS + 1))), "tensors"),
        (b"ATB1" + (249).to_bytes(4, "little") + bytes(248), "does not fit"),
        (
            b"ATB1" + (blob.MAX_HEADER_BYTES + 1).to_bytes(4, "little")
            + bytes(blob.MAX_HEADER_BYTES + 1),
            "does not fit",
        ),
        (b"ATB2" + bytes(60), "magic"),
        (b"ATB1", "too few"),
    ],
)  # fmt: skip
def test_blob_names_the_bound_that_its_header_breaks(blob_: bytes, match: str) -> None:
    with pytest.raises(DataLoss, match=match):
        blob.decode(blob_)


def test_blob_of_its_largest_parts_is_taken() -> None:
    names = {f"{n:0128}": np.zeros((1,) * 8, np.uint8) for n in range(3)}
    decoded = blob.decode(blob.encode(names))
    assert list(decoded) == list(names)
    many = {str(n): np.zeros(1, np.uint8) for n in range(blob.MAX_TENSORS)}
    assert len(blob.decode(blob.encode(many))) == blob.MAX_TENSORS


@pytest.mark.parametrize(
    "tensors_",
    [
        {"x" * 129: np.zeros(1)},
        {"x": np.zeros((1,) * 9)},
        {str(n): np.zeros(1, np.uint8) for n in range(blob.MAX_TENSORS + 1)},
    ],
    ids=["name", "dimensions", "tensors"],
)
def test_blob_encode_raises_when_a_bound_of_the_header_is_broken(
    tensors_: dict[str, np.ndarray],
) -> None:
    with pytest.raises(ValueError, match="tensor"):
        blob.encode(tensors_)


def test_blob_of_a_shape_that_was_seen_before_has_its_own_bytes_and_is_checked_anew() -> None:
    first = blob.encode({"ids": np.arange(3, dtype=np.int32)})
    second = blob.encode({"ids": np.arange(3, 6, dtype=np.int32)})
    assert blob.decode(first)["ids"].tolist() == [0, 1, 2]
    assert blob.decode(second)["ids"].tolist() == [3, 4, 5]
    with pytest.raises(DataLoss, match="outside"):
        blob.decode(second[:-1])
    with pytest.raises(DataLoss, match="no tensor"):
        blob.decode(second.ljust(len(second) + 200, b"\0"))
