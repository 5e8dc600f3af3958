"""torch's profiler, for what runs on a thread of its own."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def profiled(device: torch.device) -> Any:
    """A profiler of this thread's operations, and of the GPU's; a context manager."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities)


@cache
def start_profiler(device: torch.device) -> None:
    """Start the profiler once on this thread, which must be the one that imported torch.

    Its library reports an error when another thread is the first to start it.
    """
    with profiled(device):
        torch.zeros(1, device=device).add_(1)
