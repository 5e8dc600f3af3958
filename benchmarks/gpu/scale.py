"""Determines the amount of work from the memory of the device, and the settings to compare."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from antiphon.deployment.stage_config import CopiesConfig, TorchConfig
from antiphon.transport.device_edge import Staging, ToHost, copies_on
from antiphon_services.lm.graphs import Bucketing, Eager, GraphPool
from benchmarks.gpu.report import Figures

STAGING_BYTES = 64 << 20
ROOMY_BYTES = 100e9
"""The free memory required to run the complete pipeline with 64 sessions of 2,048 positions."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work for engines and for the pipeline, in which sessions have `context`
    positions.
    """

    sessions: Sequence[int]
    context: int
    frames: int
    prompt_rows: Sequence[int]
    arriving: int
    prefills: Sequence[int]
    tokens: int
    calls: int
    reply_tokens: int
    reply_frames: int
    rounds: int
    startup_s: float


ROOMY = Scale(
    sessions=(1, 8, 64),
    context=2048,
    frames=40,
    prompt_rows=(48, 300, 120, 700),
    arriving=2048,
    prefills=(128, 1024, 8192),
    tokens=40,
    calls=20,
    reply_tokens=60,
    reply_frames=100,
    rounds=3,
    startup_s=240.0,
)
NARROW = replace(ROOMY, sessions=(1, 8, 32), context=1024)
DRY = Scale(
    sessions=(1, 2),
    context=512,
    frames=3,
    prompt_rows=(20, 40),
    arriving=140,
    prefills=(16, 40),
    tokens=3,
    calls=2,
    reply_tokens=6,
    reply_frames=6,
    rounds=1,
    startup_s=120.0,
)


def scale_of(device: torch.device) -> Scale:
    """Return the scale for the free memory at the first call. On a CPU, it is tiny."""
    return DRY if device.type == "cpu" else scale_for(_free_bytes(device))


def scale_for(free_bytes: float) -> Scale:
    """Return the scale that fits into the given amount of GPU memory with the released sizes."""
    return ROOMY if free_bytes >= ROOMY_BYTES else NARROW


@cache
def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]


@dataclass(frozen=True, slots=True)
class Way:
    """The settings of a stage."""

    graphs: bool
    launch_ahead: bool = False
    fused: bool = False
    async_to_host: bool = True
    async_to_device: bool = True

    def __str__(self) -> str:
        """Return the settings in the format of row names."""
        words = ["graphs" if self.graphs else "eager"]
        words += ["launch-ahead"] * self.launch_ahead + ["fused"] * self.fused
        words += ["async_to_host off"] * (not self.async_to_host)
        words += ["async_to_device off"] * (not self.async_to_device)
        return ", ".join(words)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of `StageConfig` for a stage that decodes one position at a time."""
        return self._settings(fused=self.fused)

    @property
    def audio_settings(self) -> dict[str, Any]:
        """The fields of `StageConfig` for a stage that generates audio, which has no fused
        kernels.
        """
        return self._settings(fused=False)

    def _settings(self, *, fused: bool) -> dict[str, Any]:
        return {
            "torch": TorchConfig(graphs=self.graphs, launch_ahead=self.launch_ahead, fused=fused),
            "copies": CopiesConfig(
                async_to_host=self.async_to_host, async_to_device=self.async_to_device
            ),
        }


EAGER = Way(False)


def with_graphs(device: torch.device) -> list[Way]:
    """Return the settings of a deployment on a GPU.

    Fused kernels are not included on a CPU, because compiling them takes minutes.
    """
    ways = [Way(True, launch_ahead=True), Way(True)]
    if device.type == "cuda":
        ways += [replace(each, fused=True) for each in ways]
    return ways


def bucketing_of(way: Way, device: torch.device) -> Bucketing | None:
    """Return CUDA graphs, or the same functions without graphs on a CPU."""
    if not way.graphs:
        return None
    return GraphPool(device) if device.type == "cuda" else Eager


@contextmanager
def precision_of(name: str) -> Iterator[torch.dtype]:
    """Yield the dtype of weights. For `tf32`, float32 matrix products are rounded."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    rounds = name == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounds
    try:
        yield torch.bfloat16 if name == "bfloat16" else torch.float32
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


def summary(laps_ms: Sequence[float]) -> Figures:
    """Return the first lap, and the distribution of the other laps."""
    first, *rest = laps_ms
    rest = rest or [first]
    return {
        "first_ms": round(first, 3),
        "median_ms": round(statistics.median(rest), 3),
        "p95_ms": round(float(np.percentile(rest, 95)), 3),
        "least_ms": round(min(rest), 3),
        "most_ms": round(max(rest), 3),
        "laps": len(laps_ms),
    }


def to_host_of(device: torch.device, way: Way) -> ToHost:
    """Return copies that run during the engine's work, unless they are disabled or on a CPU."""
    if device.type == "cpu" or not way.async_to_host:
        return ToHost.direct()
    return ToHost(copies_on(device), Staging(STAGING_BYTES, pinned=True))
