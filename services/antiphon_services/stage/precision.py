"""Determines the dtype of a stage and the rounding of float32 on a GPU."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from antiphon.deployment.schema import StageConfig

if TYPE_CHECKING:
    import torch

FLOAT32, BFLOAT16 = "float32", "bfloat16"

log = logging.getLogger(__name__)


def dtype_name(role: str, config: StageConfig, *, on_gpu: str = FLOAT32) -> str:
    """Return the configured dtype. The default is `on_gpu` on a GPU, and float32 on a CPU.

    A decoder is slow in float32 on a GPU. torch doesn't have a grouped product for float32, so
    experts run one at a time, and the host waits for the device in each layer.
    """
    if not config.device.startswith("cuda"):
        return config.dtype or FLOAT32
    if config.dtype is None:
        return on_gpu
    if config.dtype == FLOAT32 != on_gpu:
        log.warning(
            "%s: dtype: float32 on %s is intended for comparisons, because matrix "
            "multiplications take several times as long, and with experts, every layer waits "
            "for the device; leave it out to use %s",
            role,
            config.device,
            on_gpu,
        )
    return config.dtype


def compute_dtype(role: str, config: StageConfig, *, on_gpu: str = FLOAT32) -> torch.dtype:
    """Return `dtype_name` as a torch dtype and call `keep_float32_exact`."""
    import torch

    keep_float32_exact()
    chosen: torch.dtype = getattr(torch, dtype_name(role, config, on_gpu=on_gpu))
    return chosen


def keep_float32_exact() -> None:
    """Disable TF32 rounding for matrix products and convolutions in this process.

    By default, torch enables TF32 for convolutions. It keeps only 10 of the mantissa's 23 bits,
    whereas float32 results should be as precise as the reference.
    """
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
