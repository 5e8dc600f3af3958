"""Finds problems that would prevent a deployment from starting, by inspecting files and their
headers.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from antiphon.deployment.schema import StageConfig
from antiphon.errors import AntiphonError, FailedPrecondition, InvalidArgument, NotFound
from antiphon.pipelines.files import REMEDY, is_lfs_pointer
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.checkpoint.safetensors_header import read_header

TOKENIZER_SETTINGS = "tokenizer_config.json"
TOKENIZERS = ("tokenizer.json", "vocab.json", "tokenizer.model", "vocab.txt")
INDEX_PATTERN = "*.safetensors.index.json"
AUTO = "auto"
"""The name with which a stage selects its engine itself."""
VLLM = "vllm"
"""The name of an engine and of the package it requires."""
# The kinds of devices that torch names. Stages check whether they support one.
_DEVICE = re.compile("(cpu|cuda|hpu|mps|npu|xla|xpu)(:[0-9]+)?")
ACCELERATOR_FILES = ("nvidiactl", "nvidia0", "nvhost-gpu", "nvmap", "dxg", "kfd")
"""The device files in /dev for devices that torch supports as CUDA.

They cover NVIDIA, Jetson, WSL and AMD.
"""


def check_model_dir(model_dir: Path) -> None:
    """Raise `NotFound` if the model is not a directory on this machine."""
    if not model_dir.is_dir():
        raise NotFound(
            f"model: {model_dir} is not a directory; use a checkpoint directory, or, with "
            "`antiphon serve`, ORG/NAME on the Hugging Face hub",
            field="model",
        )


def check_checkpoint(model_dir: Path) -> None:
    """Raise `FailedPrecondition` if the tokenizer or weights are missing or truncated.

    This only reads file names, sizes and safetensors headers. Subdirectories may contain their own
    weights.
    """
    has_tokenizer = any((model_dir / name).is_file() for name in TOKENIZERS)
    if (model_dir / TOKENIZER_SETTINGS).is_file() and not has_tokenizer:
        raise FailedPrecondition(
            f"{model_dir}: has no tokenizer: it contains none of {', '.join(TOKENIZERS)}; {REMEDY}"
        )
    folders = [each for each in model_dir.iterdir() if each.is_dir() and each.name[0] != "."]
    for folder in (model_dir, *sorted(folders)):
        _check_listed(folder)
        for path in sorted(folder.glob("*.safetensors")):
            _check_whole(path)


def check_engines(stages: Mapping[str, StageConfig], pipeline: Pipeline) -> None:
    """Raise `InvalidArgument` if the engine or the device of a stage doesn't exist, and
    `FailedPrecondition` if the package of an engine isn't installed.

    A stage whose pipeline doesn't declare its engines isn't checked.
    """
    for role, config in stages.items():
        engines = pipeline.stage(role).engines
        if not engines:
            continue
        if config.engine not in (AUTO, *engines):
            field = f"stages.{role}.engine"
            raise InvalidArgument(
                f"{field}: unsupported engine {config.engine!r}; use one of: "
                f"{', '.join((AUTO, *engines))}",
                field=field,
            )
        if config.engine == VLLM and not is_importable(VLLM):
            field = f"stages.{role}.engine"
            raise FailedPrecondition(
                f"{field}: the engine vllm requires the package vllm: pip install 'antiphon[vllm]'",
                field=field,
            )
        if not _DEVICE.fullmatch(config.device):
            field = f"stages.{role}.device"
            raise InvalidArgument(
                f"{field}: unknown device {config.device!r}; use cpu, cuda or cuda:N", field=field
            )


def is_importable(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    return importlib.util.find_spec(package) is not None


def check_devices(stages: Mapping[str, StageConfig], devices: Path = Path("/dev")) -> None:
    """Raise `InvalidArgument` if a stage uses a CUDA device but the machine has no accelerator."""
    if any((devices / name).exists() for name in ACCELERATOR_FILES):
        return
    for role, config in stages.items():
        if config.device.partition(":")[0] == "cuda":
            field = f"stages.{role}.device"
            raise InvalidArgument(
                f"{field}: {config.device!r} requires a GPU, but this machine has none; set it "
                "to 'cpu'",
                field=field,
            )


def _check_listed(folder: Path) -> None:
    """Check that the files listed in an index exist."""
    for index in sorted(folder.glob(INDEX_PATTERN)):
        for name in sorted(set(_files_of(index))):
            if not (folder / name).is_file():
                raise FailedPrecondition(f"{folder / name}: is missing; {REMEDY}")


def _files_of(index: Path) -> Iterable[str]:
    """Return the file names in an index.

    The result is empty if the index cannot be read, because the loader reports that error.
    """
    try:
        names: Mapping[str, str] = json.loads(index.read_bytes())["weight_map"]
        return [str(each) for each in names.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


class _Tensor(msgspec.Struct):
    data_offsets: tuple[int, int]


def _check_whole(path: Path) -> None:
    """Check that the size of a file matches its header."""
    size = path.stat().st_size
    try:
        header = read_header(path)
        end = len(header) + max((each.data_offsets[1] for each in _tensors(header)), default=0)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise _unreadable(path) from error
    if size < end:
        raise FailedPrecondition(f"{path}: is truncated: it has {size} of {end} bytes; {REMEDY}")


def _tensors(header: bytes) -> Iterator[_Tensor]:
    for name, described in msgspec.json.decode(header[8:], type=dict[str, msgspec.Raw]).items():
        if name != "__metadata__":
            yield msgspec.json.decode(described, type=_Tensor)


def _unreadable(path: Path) -> AntiphonError:
    if is_lfs_pointer(path):
        return FailedPrecondition(
            f"{path}: is a Git LFS pointer instead of the actual file; run `git lfs pull` in "
            "its repository"
        )
    return FailedPrecondition(f"{path}: is not a complete safetensors file; {REMEDY}")
