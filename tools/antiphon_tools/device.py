"""Describes the device and the software versions with which results were measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from typing import Any

import torch

from antiphon_tools.load.machine import load_average, processor

PACKAGES = ("torch", "transformers", "numpy", "triton", "grpcio", "protobuf", "uvloop", "msgspec")


class NoDevice(Exception):
    """Raised if the device for a measurement does not exist."""


def require(device: torch.device) -> None:
    """Raise `NoDevice`, with the reason, if tensors cannot be created on the device."""
    if device.type == "cpu":
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise NoDevice(
            f"requires a GPU: the installed torch {torch.__version__} was built without CUDA; "
            "to try the command without a GPU, use --device cpu"
        )
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise NoDevice(
            f"requires a GPU: torch {torch.__version__} found {count} CUDA devices, which don't "
            f"include {device}; to try the command without a GPU, use --device cpu"
        )
    torch.ones(2, device=device).sum().item()


def facts(device: torch.device) -> dict[str, Any]:
    """Return a description of the device and the versions of relevant packages."""
    known: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "load_average": load_average(),
        **{name: _version(name) for name in PACKAGES},
        "device": str(device),
    }
    if device.type == "cuda":
        # These functions have no type annotations in torch.
        cudnn: Any = torch.backends.cudnn
        nccl: Any = torch.cuda.nccl
        properties = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        known |= {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gb": round(total / 1e9, 1),
            "free_gb": round(free / 1e9, 1),
            "cuda": torch.version.cuda,
            "cudnn": cudnn.version(),
            "nccl": torch.distributed.is_nccl_available() and nccl.version(),
            "driver": _driver(),
        }
    return known


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    """Return the driver version that nvidia-smi reports, if the program is installed."""
    if (program := shutil.which("nvidia-smi")) is None:
        return "unknown: no nvidia-smi"
    asked = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    return told.stdout.strip() or told.stderr.strip()
