"""Detects exceptions after which a process can no longer use its device."""

from __future__ import annotations

import torch

# Driver errors that don't have an exception type of their own in some versions. If only a launch or
# an allocation is rejected, the device can still be used.
_LOST = ("CUDA error", "device-side assert", "CUDNN_STATUS_EXECUTION_FAILED")
_HARMLESS = ("out of memory", "invalid configuration argument")


def device_is_lost(error: Exception) -> bool:
    """Return whether every later call on the device will fail. This happens after an illegal memory
    access, for example.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    text = str(error)
    lost = isinstance(error, torch.AcceleratorError) or any(each in text for each in _LOST)
    return lost and not any(each in text for each in _HARMLESS)
