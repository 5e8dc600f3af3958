"""Loads the SharedMemoryConnector of vllm-omni from an unpacked wheel, without vLLM.

Its own files are used unchanged. They require two classes of vLLM for type checks, and parent
packages of vllm-omni whose imports would require all of vLLM.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch

from antiphon.values.chunk import Tensors

_PACKAGES = (
    "vllm_omni",
    "vllm_omni.distributed",
    "vllm_omni.distributed.omni_connectors",
    "vllm_omni.distributed.omni_connectors.connectors",
    "vllm_omni.distributed.omni_connectors.utils",
    "vllm_omni.entrypoints",
)


def load_connector(source: str) -> Any:
    """Return a connector. `source` is the directory of the unpacked wheel."""
    for name in _PACKAGES:
        package = ModuleType(name)
        package.__path__ = [str(Path(source, *name.split(".")))]
        sys.modules[name] = package
    _stub("vllm")
    _stub("vllm.outputs", CompletionOutput=type("CompletionOutput", (), {}),
          RequestOutput=type("RequestOutput", (), {}))  # fmt: skip
    _stub("vllm_omni.config")
    _stub("vllm_omni.config.yaml_util", to_dict=dict)
    _stub("vllm_omni.platforms", current_omni_platform=None)
    module = importlib.import_module(f"{_PACKAGES[3]}.shm_connector")
    return module.SharedMemoryConnector({})


def to_torch(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Convert tensors to torch tensors with the same memory, which vllm-omni sends."""
    return {
        name: torch.from_numpy(tensor.view(np.uint16)).view(torch.bfloat16)
        if tensor.dtype == ml_dtypes.bfloat16
        else torch.from_numpy(tensor)
        for name, tensor in tensors.items()
    }


def _stub(name: str, **members: object) -> None:
    module = ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
