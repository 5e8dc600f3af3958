"""Engines alone, at the released sizes with random weights: what a step takes.

On a CPU, where only the command is tried, the sizes are tiny and the figures mean nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.gpu.code2wav_rows import code2wav_rows
from benchmarks.gpu.report import Row
from benchmarks.gpu.talker_rows import talker_rows
from benchmarks.gpu.thinker_rows import thinker_rows


def engine_rows(device: torch.device, traces: Path | None) -> list[Row]:
    """Every engine at every load."""
    return [*talker_rows(device, traces), *code2wav_rows(device), *thinker_rows(device)]
