"""How much of each thing is measured, in which ways, and what is told of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from antiphon.transport.device_edge import Staging, ToHost, copies_on
from benchmarks.gpu.report import Figures
from services.lm.graphs import Bucketing, Eager, GraphPool

STAGING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured of each thing."""

    sessions: Sequence[int]
    frames: int
    prompt_rows: Sequence[int]
    arriving: int
    prefills: Sequence[int]
    tokens: int
    context: int
    rounds: int


FULL = Scale(
    sessions=(1, 4, 16, 64),
    frames=40,
    prompt_rows=(48, 300, 120, 700),
    arriving=2048,
    prefills=(128, 1024, 8192),
    tokens=40,
    context=2048,
    rounds=20,
)
SMOKE = Scale(
    sessions=(1, 4),
    frames=3,
    prompt_rows=(20, 40),
    arriving=140,
    prefills=(16, 40),
    tokens=3,
    context=300,
    rounds=2,
)


def scale_of(device: torch.device) -> Scale:
    """All of it on a GPU."""
    return FULL if device.type == "cuda" else SMOKE


@dataclass(frozen=True, slots=True)
class Way:
    """How an engine's steps are asked for."""

    graphs: bool
    launch_ahead: bool = False

    def __str__(self) -> str:
        """As rows name it."""
        named = "graphs" if self.graphs else "eager"
        return f"{named}, launched ahead" if self.launch_ahead else named


WAYS = (Way(False), Way(True), Way(True, launch_ahead=True))


def bucketing_of(way: Way, device: torch.device) -> Bucketing | None:
    """CUDA graphs; on a CPU the same calls without graphs."""
    if not way.graphs:
        return None
    return GraphPool(device) if device.type == "cuda" else Eager


@contextmanager
def precision_of(name: str) -> Iterator[torch.dtype]:
    """The dtype of weights, with float32 products as they are, or rounded to TF32."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    rounds = name == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounds
    try:
        yield torch.bfloat16 if name == "bfloat16" else torch.float32
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept


def summary(laps_ms: Sequence[float]) -> Figures:
    """The middle and the ends."""
    return {
        "median_ms": round(statistics.median(laps_ms), 3),
        "p95_ms": round(float(np.percentile(laps_ms, 95)), 3),
        "least_ms": round(min(laps_ms), 3),
        "most_ms": round(max(laps_ms), 3),
        "laps": len(laps_ms),
    }


def to_host_of(device: torch.device) -> ToHost:
    """Copies beside the engine's work; none on a CPU."""
    if device.type == "cpu":
        return ToHost.direct()
    return ToHost(copies_on(device), Staging(STAGING_BYTES, pinned=True))
