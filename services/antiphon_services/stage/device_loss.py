"""Which exceptions mean that the device is lost to this process."""

from __future__ import annotations

import torch

# Of the driver, without an exception type of its own in every version; a launch or an
# allocation that was merely refused poisons nothing.
_LOST = ("CUDA error", "device-side assert", "CUDNN_STATUS_EXECUTION_FAILED")
_HARMLESS = ("out of memory", "invalid configuration argument")


def device_is_lost(error: Exception) -> bool:
    """Whether every later call on the device will fail as well, as after an illegal access."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    told = str(error)
    lost = isinstance(error, torch.AcceleratorError) or any(each in told for each in _LOST)
    return lost and not any(each in told for each in _HARMLESS)
