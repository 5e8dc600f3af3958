"""Wrappers for torch's profiler, for use on separate threads."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def profiled(device: torch.device) -> Any:
    """Return a context manager that profiles the operations of this thread and of the GPU."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities)


@cache
def start_profiler(device: torch.device) -> None:
    """Start the profiler once on this thread, which must be the one that imported torch.

    The profiler's library reports an error if another thread starts it first.
    """
    with profiled(device):
        torch.zeros(1, device=device).add_(1)
