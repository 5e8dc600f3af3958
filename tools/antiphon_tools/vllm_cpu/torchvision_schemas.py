"""Lets torchvision be imported where its native library does not load.

vLLM imports Transformers' image processors, which import torchvision. Its ordinary wheel
is linked to CUDA libraries that a CPU build of torch lacks, and the import stops at two
operators without a schema. Nothing here calls them, so declaring them is enough. This has
to happen in every process before the import, so `make test-vllm` puts this file and a
`.pth` file that imports it into its environment's site-packages.
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
    """Finds nothing, but declares the operators when torchvision is looked for."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Called for every import; the first of torchvision is the last that matters."""
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare()
        return None


def _declare() -> None:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    # Without a reference the schemas go again.
    _declared.append(library)


sys.meta_path.insert(0, _Finder())
