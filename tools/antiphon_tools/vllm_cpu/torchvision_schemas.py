"""Makes it possible to import torchvision if its native library cannot be loaded.

vLLM imports image processors of transformers, which import torchvision. The default torchvision
wheel is linked to CUDA libraries that a CPU build of torch does not include, so the import fails
because two operators have no schema. Since these operators are never called, it is sufficient to
declare them. Every process has to do this before the import, so `make test-vllm` installs this
file, and a `.pth` file that imports it, in the site-packages of its environment.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

OPERATORS = ("nms", "qnms")
_declared: list[object] = []


class _Finder(importlib.abc.MetaPathFinder):
    """Declares the operators when torchvision is imported. It never finds a module itself."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Called for every import. The finder removes itself at the first import of torchvision."""
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare()
        return None


def _declare() -> None:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    # The schemas are removed when the library object is deleted.
    _declared.append(library)


sys.meta_path.insert(0, _Finder())
