"""Reads the tensors in one folder of a checkpoint by name."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_json
from antiphon.runtime.checkpoint.quantization import quantization_of
from antiphon.runtime.checkpoint.safetensors_header import read_header
from antiphon.runtime.checkpoint.torch_files import read_torch_file

if TYPE_CHECKING:
    import torch

    from antiphon.runtime.checkpoint.staged_copies import StagedCopies

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TORCH_FILE = "pytorch_model.bin"
TORCH_INDEX_FILE = "pytorch_model.bin.index.json"
FORMATS = ((INDEX_FILE, SINGLE_FILE), (TORCH_INDEX_FILE, TORCH_FILE))
"""The supported formats of stored weights, with the preferred one first. Each is either a single
file or an index of several files.
"""

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""torch's names for the safetensors dtypes."""


@dataclass(frozen=True, slots=True)
class StoredSize:
    """The size of stored tensors, in elements and in bytes."""

    numbers: int = 0
    bytes: int = 0

    def __add__(self, other: StoredSize) -> StoredSize:
        return StoredSize(self.numbers + other.numbers, self.bytes + other.bytes)


class _File(Protocol):
    """An open weight file."""

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return the tensor with the given name."""

    def get_slice(self, name: str) -> Any:
        """Return an object whose `get_shape` returns the shape of the tensor without reading its
        data.
        """


class Weights:
    """The weights of a checkpoint directory, or of a subfolder that has its own weights.

    They are stored in `model.safetensors`, in `pytorch_model.bin`, or in several files that are
    listed in an index in the same folder. If both formats exist, safetensors is used. Only names
    are read until a tensor is requested.
    """

    def __init__(self, folder: Path, file: str = "") -> None:
        """Locate the weights in the folder. If `file` is set, only the weights in that file are
        used.

        Raises `FailedPrecondition` if there are no weights, or if their names can't be read.
        """
        self.folder = folder
        path = folder / file
        self.files = dict.fromkeys(_names(path), path) if file else _locate(folder)

    def require_unquantized(self, part: str, prefix: str, remedy: str = "") -> None:
        """Raise `FailedPrecondition` if the tensors whose names begin with `prefix` are quantized.

        The error names the quantization method and uses `part` as the name for these tensors. If
        vLLM supports the method, the error also suggests `remedy` as an alternative.
        """
        file = self.folder / CONFIG_FILE
        config = read_json(file) if file.is_file() else {}
        if (found := quantization_of(config, self.files, prefix)) is not None:
            other = f"{remedy}, or " if remedy and found.by_vllm else ""
            raise FailedPrecondition(
                f"{self.folder}: {part} {found.describe()}, which the torch engine doesn't "
                f"support; {other}use a checkpoint in which these weights aren't quantized"
            )

    def has(self, prefix: str) -> bool:
        """Return whether any name begins with `prefix`."""
        return any(name.startswith(prefix) for name in self.files)

    def sizes(self, prefix: str, skip: Sequence[str] = ()) -> dict[str, StoredSize]:
        """Return the total size, for each dtype, of the tensors whose names begin with `prefix`.
        Names that begin with one of the prefixes in `skip` are excluded.

        The keys are torch's names for the dtypes. This reads only headers. Raises
        `FailedPrecondition` if a file can't be read.
        """
        found: dict[str, StoredSize] = {}
        for file in {file for name, file in self.files.items() if name.startswith(prefix)}:
            for name, (dtype, size) in _sizes(file).items():
                if name.startswith(prefix) and not name.startswith(tuple(skip)):
                    found[dtype] = found.get(dtype, StoredSize()) + size
        return found

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor on the CPU, in the dtype in which it is stored.

        Raises `FailedPrecondition` if the tensor can't be read, or if its module is quantized.
        """
        module = name.rpartition(".")[0]
        self.require_unquantized(module, f"{module}.")
        with self.open() as reader:
            return reader.read(name).clone()

    def open(self, device: torch.device | str = "cpu") -> WeightReader:
        """Return a context manager that reads tensors, and that can copy them into tensors on
        `device`.

        Tensors on a GPU that are filled by `read_into` are complete when the context ends.
        """
        import torch

        from antiphon.runtime.checkpoint.staged_copies import StagedCopies

        device = torch.device(device)
        return WeightReader(self, StagedCopies(device) if device.type == "cuda" else None)


class WeightReader(contextlib.ExitStack):
    """Reads tensors from weight files. Each file is opened once, when one of its tensors is first
    requested.
    """

    def __init__(self, weights: Weights, copies: StagedCopies | None) -> None:
        """Read tensors of `weights`. `copies` transfers tensors to a GPU. If it is None, all copies
        are synchronous.
        """
        super().__init__()
        self._weights = weights
        self._opened: dict[Path, _File] = {}
        self._copies = copies
        if copies is not None:
            self.callback(copies.finish)

    def read(self, name: str) -> torch.Tensor:
        """Return a stored tensor as a view of the file. Raises `FailedPrecondition` if it can't be
        read.
        """
        with self._file_of(name) as file:
            return file.get_tensor(name)

    def read_into(self, target: torch.Tensor, name: str) -> None:
        """Copy a stored tensor into `target`, converting its dtype and moving it to the right
        device.

        If the target is on the meta device, only the shapes are compared.
        """
        with self._file_of(name) as file:
            shape = list(file.get_slice(name).get_shape())
        if shape != list(target.shape):
            raise FailedPrecondition(
                f"{name}: the shape is {shape} in the checkpoint, but {list(target.shape)} "
                "according to its configuration; the weights don't match config.json"
            )
        if target.is_meta:
            return
        stored = self.read(name)
        if target.is_floating_point() and not _is_plain(stored.dtype):
            raise FailedPrecondition(
                f"{name}: is stored as {str(stored.dtype).removeprefix('torch.')}, which can't "
                "be used without its quantization scale; use a checkpoint in which it isn't "
                "quantized"
            )
        if self._copies is None:
            target.copy_(stored)
        else:
            self._copies.copy(target, stored)

    @contextlib.contextmanager
    def _file_of(self, name: str) -> Iterator[_File]:
        """Yield the file that contains the tensor. Errors that occur while reading are converted to
        `FailedPrecondition`.
        """
        from safetensors import SafetensorError

        path = self._weights.files.get(name)
        if path is None:
            raise FailedPrecondition(f"{self._weights.folder}: has no tensor {name}")
        try:
            if path not in self._opened:
                self._opened[path] = self._open(path)
            yield self._opened[path]
        except (OSError, SafetensorError, KeyError) as error:
            raise FailedPrecondition(f"{path}: can't read {name}: {error}; {REMEDY}") from error

    def _open(self, path: Path) -> _File:
        if path.suffix != ".safetensors":
            return _TorchFile(path)
        from safetensors import safe_open

        file: _File = self.enter_context(safe_open(path, framework="pt"))
        return file


def _is_plain(dtype: torch.dtype) -> bool:
    """Return whether values of this dtype can be used as they are. This is true for floating-point
    types with more than 8 bits.
    """
    return dtype.is_floating_point and dtype.itemsize > 1


class _TorchFile:
    """A dictionary of tensors written by `torch.save`."""

    def __init__(self, path: Path) -> None:
        content = read_torch_file(path)
        self.tensors = _tensors(path, content)

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return the tensor with the given name. Raises `KeyError` if there is none."""
        return self.tensors[name]

    def get_slice(self, name: str) -> _Shape:
        """Return the tensor's shape. Raises `KeyError` if there is no such tensor."""
        return _Shape(self.tensors[name])


class _Shape:
    """A tensor's shape, with the same interface as a safetensors slice."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """Return the size of each axis."""
        return list(self._tensor.shape)


def _tensors(path: Path, content: Any) -> Mapping[str, torch.Tensor]:
    """Return the tensors in a file by name. Raises `FailedPrecondition` if the file contains
    anything else.

    Some training code stores the tensors under the key `model`.
    """
    import torch

    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]
    if not isinstance(content, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor)
        for name, tensor in content.items()
    ):
        raise FailedPrecondition(
            f"{path}: must contain a dictionary that maps names to tensors; {REMEDY}"
        )
    return content


def _locate(folder: Path) -> dict[str, Path]:
    """Return the file in which each tensor is stored. Raises `FailedPrecondition` if the list of
    tensors can't be read.
    """
    for index, single in FORMATS:
        if (folder / index).is_file():
            return dict(_indexed(folder / index))
        if (folder / single).is_file():
            return dict.fromkeys(_names(folder / single), folder / single)
    missing = INDEX_FILE if any(folder.glob("model-*.safetensors")) else SINGLE_FILE
    raise FailedPrecondition(
        f"{folder / missing}: is missing, so that its tensors can't be listed; {REMEDY}"
    )


def _indexed(index: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and files listed in an index. The files are in the same folder as
    the index.
    """
    with _listing(index):
        for name, file in json.loads(index.read_bytes())["weight_map"].items():
            if Path(file).name != file:
                raise ValueError(f"{file!r} is not the name of a file in the same directory")
            yield name, index.parent / file


def _sizes(file: Path) -> dict[str, tuple[str, StoredSize]]:
    """Return the dtype and the size of each tensor in a file."""
    if file.suffix != ".safetensors":
        tensors = _TorchFile(file).tensors
        return {
            name: (str(each.dtype).removeprefix("torch."), StoredSize(each.numel(), each.nbytes))
            for name, each in tensors.items()
        }
    with _listing(file):
        header = json.loads(read_header(file)[8:])
        header.pop("__metadata__", None)
        return {name: _described(each) for name, each in header.items()}


def _described(tensor: Mapping[str, Any]) -> tuple[str, StoredSize]:
    """Return the dtype and the size of a tensor in a safetensors header."""
    first, end = tensor["data_offsets"]
    dtype = str(tensor["dtype"])
    return DTYPES.get(dtype, dtype.lower()), StoredSize(math.prod(tensor["shape"]), end - first)


def _names(single: Path) -> list[str]:
    """Return the names of the tensors in a file."""
    if single.suffix != ".safetensors":
        return list(_TorchFile(single).tensors)
    with _listing(single):
        header = json.loads(read_header(single)[8:])
        return [name for name in header if name != "__metadata__"]


@contextlib.contextmanager
def _listing(path: Path) -> Iterator[None]:
    """Convert errors that occur while reading a list of tensors to `FailedPrecondition`."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FailedPrecondition(
            f"{path}: its tensors can't be listed: {error!r}; {REMEDY}"
        ) from error
