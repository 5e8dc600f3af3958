"""Reads a checkpoint directory: its fingerprint, one part's module, one tensor.

A stage loads its own part and reads no other tensor. `from_pretrained` cannot do
that for a talker: released checkpoints hold one tensor per expert, transformers
holds all experts in one, and its conversion knows only the whole model and the
thinker. So the names that a module wants are worked out from the module itself, and
every difference from what the files hold is an error.

Nothing here imports torch until weights are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import REMEDY, reading

if TYPE_CHECKING:
    import torch

    ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)
    # Where a stored tensor goes within the module's: () is all of it.
    Region = tuple[int | slice, ...]

DESCRIPTION_PATTERNS = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer*.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "*.safetensors.index.json",
)
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FINGERPRINT_DIGITS = 32
SAMPLED_BLOCKS = 64
BLOCK_BYTES = 64 << 10
MAX_HEADER_BYTES = 100_000_000
NAMES_IN_MESSAGE = 5


def fingerprint(model_dir: Path) -> str:
    """A short hexadecimal digest by which stages tell that they serve one checkpoint.

    Covers configuration, tokenizer and index files whole, and of each weight file its
    name, size, header and evenly spaced blocks; weight files below 4 MiB whole.
    Raises `FailedPrecondition` if the directory holds no configuration or no weights.
    """
    weights = sorted(model_dir.glob("*.safetensors"))
    if not weights or not (model_dir / "config.json").is_file():
        raise FailedPrecondition(f"{model_dir}: holds no config.json or no *.safetensors")
    found = {path for pattern in DESCRIPTION_PATTERNS for path in model_dir.glob(pattern)}
    digest = hashlib.sha256()
    for path in sorted(found):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    for path in weights:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        for block in _sample(path):
            digest.update(block)
    return digest.hexdigest()[:FINGERPRINT_DIGITS]


def has_submodule(model_dir: Path, prefix: str) -> bool:
    """Whether the directory has weights whose names begin so. Raises `FailedPrecondition`."""
    return any(name.startswith(prefix) for name in _locate(model_dir))


def read_tensor(model_dir: Path, name: str) -> torch.Tensor:
    """One stored tensor, on the CPU in its stored dtype. Raises `FailedPrecondition`."""
    files = _locate(model_dir)
    if name not in files:
        raise FailedPrecondition(f"{model_dir}: has no tensor {name}")
    with _Reader(files) as reader:
        return reader.read(name).clone()


def load_submodule(
    module_class: type[ModuleT],
    config: Any,
    prefix: str,
    model_dir: Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    skip: Sequence[str] = (),
) -> ModuleT:
    """`module_class(config)` in eval mode with the tensors stored under `prefix`.

    `prefix` ends with a dot ("talker."). `skip` names children that are neither
    loaded nor kept ("visual"): they become None. Parameters get `dtype`; computed
    buffers keep theirs. Raises `FailedPrecondition` that names tensors which are
    missing, unexpected or of another shape.
    """
    import torch

    with reading(model_dir / "config.json"):
        module = _construct(module_class, config)
    for child in skip:
        setattr(module, child, None)
    wanted = module.state_dict()
    files = {
        name.removeprefix(prefix): file
        for name, file in _locate(model_dir).items()
        if name.startswith(prefix)
        and not name.removeprefix(prefix).startswith(tuple(f"{child}." for child in skip))
    }
    plan = {name: _sources(name, like.shape, files) for name, like in wanted.items()}
    _check_names(prefix, {source for each in plan.values() for source in each}, files)
    for source in (source for each in plan.values() for source in each):
        if not files[source].is_file():
            raise FailedPrecondition(
                f"{files[source]}: is missing, cannot read {prefix}{source}; {REMEDY}"
            )
    loaded: dict[str, torch.Tensor] = {}
    with _Reader(files, prefix) as reader:
        for name, like in wanted.items():
            target = torch.empty(like.shape, dtype=dtype, device=device)
            for source, region in plan[name].items():
                reader.read_into(target[region], source)
            loaded[name] = target
    module.load_state_dict(loaded, assign=True)
    return module.to(device).requires_grad_(False).eval()


def _construct(module_class: type[ModuleT], config: Any) -> ModuleT:
    """The module with real buffers and, as far as they are uninitialised, storage-free
    parameters.

    Buffers are computed where the module is built and stored nowhere, so a module built
    wholly on the meta device would lack them. Parameters come from `torch.empty` and
    buffers do not; the few that come from `torch.ones` are small.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class EmptyHasNoStorage(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Any,
            types: Any,
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            placed = {"device": torch.device("meta")} if func is torch.empty else {}
            return func(*args, **(dict(kwargs or {}) | placed))

    with EmptyHasNoStorage():
        module = module_class(config)
    lost = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    if lost:
        raise FailedPrecondition(f"{module_class.__name__}: buffers are not computed: {lost}")
    return module


def _sources(name: str, shape: Sequence[int], files: Mapping[str, Path]) -> dict[str, Region]:
    """The stored tensors that make up a module's tensor, and where each goes.

    Fused experts are [experts, out, in]: `gate_up_proj` holds gate above up.
    """
    stem, _, kind = name.rpartition(".")
    if name in files or not stem.endswith(".experts"):
        return {name: ()}
    if kind == "gate_up_proj":
        half = shape[1] // 2
        parts = {"gate_proj": slice(0, half), "up_proj": slice(half, None)}
        return {
            f"{stem}.{expert}.{part}.weight": (expert, rows)
            for expert in range(shape[0])
            for part, rows in parts.items()
        }
    return {f"{stem}.{expert}.{kind}.weight": (expert,) for expert in range(shape[0])}


def _check_names(prefix: str, wanted: set[str], files: Mapping[str, Path]) -> None:
    """Raise unless the files hold exactly the wanted names."""
    missing, unexpected = sorted(wanted - files.keys()), sorted(files.keys() - wanted)
    for kind, names in (("are missing", missing), ("are unexpected", unexpected)):
        if names:
            shown = ", ".join(prefix + name for name in names[:NAMES_IN_MESSAGE])
            more = len(names) - NAMES_IN_MESSAGE
            rest = f" and {more} more" if more > 0 else ""
            raise FailedPrecondition(
                "weights and config.json do not belong together: "
                f"the checkpoint's tensors {kind}: {shown}{rest}"
            )


def _locate(model_dir: Path) -> dict[str, Path]:
    """The file of every stored tensor. Raises `FailedPrecondition`."""
    index, single = model_dir / INDEX_FILE, model_dir / SINGLE_FILE
    try:
        if index.is_file():
            names = json.loads(index.read_text())["weight_map"]
            return {name: model_dir / file for name, file in names.items()}
        names = json.loads(_read_header(single)[8:])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        parts = any(model_dir.glob("model-*.safetensors"))
        named = index if parts or index.is_file() else single
        raise FailedPrecondition(
            f"{named}: cannot list its tensors: {error!r}; {REMEDY}"
        ) from error
    return {name: single for name in names if name != "__metadata__"}


def _read_header(path: Path) -> bytes:
    """A safetensors file's length prefix and JSON header. Raises `ValueError`."""
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER_BYTES + 1
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"{path}: is not a safetensors file")
        return prefix + file.read(length)


def _sample(path: Path) -> Iterator[bytes]:
    """The header, then evenly spaced blocks of the rest, or all of a small rest."""
    try:
        header = _read_header(path)
    except ValueError as error:
        raise FailedPrecondition(str(error)) from error
    yield header
    first, end = len(header), path.stat().st_size
    step = max(BLOCK_BYTES, (end - first) // SAMPLED_BLOCKS)
    with path.open("rb") as file:
        for offset in range(first, end, step):
            file.seek(offset)
            yield file.read(BLOCK_BYTES)
        file.seek(max(first, end - BLOCK_BYTES), os.SEEK_SET)
        yield file.read(BLOCK_BYTES)


class _Reader(contextlib.ExitStack):
    """Opens each weight file once, when a tensor of it is first wanted."""

    def __init__(self, files: Mapping[str, Path], prefix: str = "") -> None:
        super().__init__()
        self._files = files
        self._prefix = prefix
        self._opened: dict[Path, Any] = {}

    def read(self, name: str) -> torch.Tensor:
        """The stored tensor, a view of the file. Raises `FailedPrecondition`."""
        from safetensors import SafetensorError, safe_open

        path = self._files[name]
        try:
            if path not in self._opened:
                self._opened[path] = self.enter_context(safe_open(path, framework="pt"))
            tensor: torch.Tensor = self._opened[path].get_tensor(self._prefix + name)
        except (OSError, SafetensorError) as error:
            raise FailedPrecondition(
                f"{path}: cannot read {self._prefix}{name}: {error}; {REMEDY}"
            ) from error
        return tensor

    def read_into(self, target: torch.Tensor, name: str) -> None:
        """Copy a stored tensor into `target`, converting dtype and device."""
        stored = self.read(name)
        if stored.shape != target.shape:
            raise FailedPrecondition(
                f"{self._prefix}{name}: is {list(stored.shape)} in the checkpoint, "
                f"the configuration makes it {list(target.shape)}: weights and config.json do not "
                "belong together"
            )
        target.copy_(stored)
