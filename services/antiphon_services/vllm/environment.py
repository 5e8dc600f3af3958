"""Environment variables for vLLM, which are set once before vLLM is imported.

Variables that the operator has already set are not changed. vLLM's processes inherit all of them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, MutableMapping

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon_services.vllm.plugin import announce, register

_PACKAGE = "vllm"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def is_installed() -> bool:
    """Return whether vLLM is installed, without importing it."""
    return importlib.util.find_spec(_PACKAGE) is not None


def prepare(
    config: StageConfig,
    models: Mapping[str, str],
    environment: MutableMapping[str, str] = os.environ,
) -> None:
    """Set the environment variables for a configuration. `models` contains the family's models, as
    in `announce`.

    Raises `FailedPrecondition` if vLLM is not installed, and `InvalidArgument` if the device is not
    supported.
    """
    if not is_installed():
        raise FailedPrecondition(
            "the engine vllm requires the package vllm: pip install 'antiphon[vllm]'",
            field="engine",
        )
    for name, value in _settings(config).items():
        environment.setdefault(name, value)
    announce(models, environment)
    if _PACKAGE in sys.modules:
        # vLLM reads entry points only once per process, and may already have done so for other
        # models.
        register()
    kind, _, index = config.device.partition(":")
    if kind == "cuda" and index:
        environment[_VISIBLE] = _from(index, environment.get(_VISIBLE, ""))


def _settings(config: StageConfig) -> dict[str, str]:
    """Return the environment variables for a device, with their default values."""
    settings = {
        # The stage has threads, which a fork would lose while they may be holding locks.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        # torch would prefer cuDNN, which plans each new shape on the host. See
        # `antiphon_services.lm.attention_calls`.
        "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
    }
    if config.device == "cpu":
        # Otherwise the executor would run in a separate process, and all engines on a host would be
        # bound to the same core.
        settings |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        if config.threads:
            settings["OMP_NUM_THREADS"] = str(config.threads)
    return settings


def _from(index: str, visible: str) -> str:
    """Return the visible devices from `index` onwards. The first one is used by the stage, and the
    rest by its ranks.
    """
    devices = [each for each in visible.split(",") if each]
    if not index.isdecimal() or (devices and int(index) >= len(devices)):
        raise InvalidArgument(
            f"device: cuda:{index} is not available; visible devices: {visible or 'all'}",
            field="device",
        )
    if devices:
        return ",".join(devices[int(index) :])
    import torch

    count = max(torch.cuda.device_count(), int(index) + 1)
    return ",".join(str(each) for each in range(int(index), count))
