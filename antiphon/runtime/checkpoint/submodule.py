"""Builds a single module of a model and loads its weights without reading any other tensors.

`from_pretrained` can't do this for every part. Published checkpoints contain one tensor per expert,
whereas transformers keeps all experts in one tensor and converts between the two only for some
parts. In this module, the names of the stored tensors are derived from the module itself. If they
don't match the files, this is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, reading
from antiphon.runtime.checkpoint.loading_progress import LoadingProgress
from antiphon.runtime.checkpoint.weights import Weights

if TYPE_CHECKING:
    import torch

    ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)
    # The region of a module's tensor that is filled by a stored tensor. () means the whole tensor.
    Region = tuple[int | slice, ...]

NAMES_IN_MESSAGE = 5


def load_submodule(
    module_class: type[ModuleT],
    config: Any,
    prefix: str,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    skip: Sequence[str] = (),
    ignored: Sequence[str] = (),
) -> ModuleT:
    """Return `module_class(config)` in eval mode, with those weights whose names begin with
    `prefix`.

    `prefix` must be empty or end with a dot. Child modules listed in `skip` aren't loaded and are
    replaced by None. `ignored` lists tensors that the files may contain, but that the module
    computes itself. Their names are given in full, but without the prefix. Floating-point weights
    are converted to `dtype`, while integer weights and buffers computed by the module keep their
    own dtype. Raises `FailedPrecondition` with the names of the affected tensors if any tensors are
    missing, unexpected, quantized or of the wrong shape.
    """
    import torch

    weights.require_unquantized(f"{prefix}*" if prefix else "it", prefix)
    with reading(weights.folder / CONFIG_FILE):
        module = construct(module_class, config)
    for child in skip:
        setattr(module, child, None)
    wanted = module.state_dict()
    files = {
        name.removeprefix(prefix): file
        for name, file in weights.files.items()
        if name.startswith(prefix)
        and not name.removeprefix(prefix).startswith(tuple(f"{child}." for child in skip))
        and name.removeprefix(prefix) not in ignored
    }
    plan = {name: _sources(name, like.shape, files) for name, like in wanted.items()}
    _check_names(prefix, {source for each in plan.values() for source in each}, files)
    for source in (source for each in plan.values() for source in each):
        if not files[source].is_file():
            raise FailedPrecondition(
                f"{files[source]}: is missing, so that {prefix}{source} can't be read; {REMEDY}"
            )
    loaded: dict[str, torch.Tensor] = {}
    part = f"{prefix}*" if prefix else module_class.__name__
    kept = {
        name: dtype if like.is_floating_point() else like.dtype for name, like in wanted.items()
    }
    sizes = {name: like.numel() * kept[name].itemsize for name, like in wanted.items()}
    with (
        LoadingProgress(part, sum(sizes.values())) as progress,
        weights.open(device) as reader,
    ):
        for name, like in wanted.items():
            target = torch.empty(like.shape, dtype=kept[name], device=device)
            for source, region in plan[name].items():
                reader.read_into(target[region], prefix + source)
            loaded[name] = target
            progress.add(sizes[name])
    module.load_state_dict(loaded, assign=True)
    return module.to(device).requires_grad_(False).eval()


def construct(module_class: type[ModuleT], config: Any) -> ModuleT:
    """Return a module whose buffers are real, but whose parameters are uninitialized and have no
    storage.

    Buffers that aren't stored in the checkpoint are computed when the module is built. If the whole
    module were built on the meta device, these buffers would be missing. Only parameters are
    created with `torch.empty`. A few parameters are created with `torch.ones` instead, but they are
    small. Parameters without storage aren't initialized, because torch would import its compiler in
    order to do so. Raises `FailedPrecondition` if a buffer isn't computed.
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
            given = dict(kwargs or {})
            if func is torch.empty:
                return func(*args, **given | {"device": torch.device("meta")})
            if getattr(func, "__module__", "") == torch.nn.init.__name__:
                filled: torch.Tensor = args[0] if args else given["tensor"]
                if filled.is_meta:
                    return filled
            return func(*args, **given)

    with EmptyHasNoStorage():
        module = module_class(config)
    lost = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    if lost:
        raise FailedPrecondition(f"{module_class.__name__}: buffers were not computed: {lost}")
    return module


def _sources(name: str, shape: Sequence[int], files: Mapping[str, Path]) -> dict[str, Region]:
    """Return the stored tensors that make up one of the module's tensors, and the region that each
    of them fills.

    Fused experts have the shape [experts, out, in]. In `gate_up_proj`, the gate's rows come first,
    followed by those of the up projection.
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
    """Raise an error unless the files contain exactly the expected names."""
    missing, unexpected = sorted(wanted - files.keys()), sorted(files.keys() - wanted)
    for kind, names in (("are missing", missing), ("are unexpected", unexpected)):
        if names:
            shown = ", ".join(prefix + name for name in names[:NAMES_IN_MESSAGE])
            more = len(names) - NAMES_IN_MESSAGE
            rest = f" and {more} more" if more > 0 else ""
            raise FailedPrecondition(
                f"the weights don't match config.json: the checkpoint's tensors {kind}: "
                f"{shown}{rest}"
            )
