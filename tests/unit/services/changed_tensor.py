"""A copy of a checkpoint in which one tensor has other values."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor


def with_changed_tensor(
    checkpoint: Path, target: Path, name: str, change: Callable[[Tensor], object]
) -> Path:
    """Copy a checkpoint and apply `change`, which changes the tensor in place."""
    shutil.copytree(checkpoint, target)
    changed = 0
    for file in target.glob("*.safetensors"):
        with safe_open(file, "pt") as stored:
            there = name in stored.keys()  # noqa: SIM118
        if there:
            tensors = load_file(file)
            change(tensors[name])
            save_file(tensors, file, {"format": "pt"})
            changed += 1
    assert changed == 1, f"{name} is in {changed} files"
    return target
