"""How many prompt rows a step may contain, by device.

Segments that decode in the same step wait for these rows. A CPU computes them one after the other.
A GPU computes a few hundred in the time that it takes to launch the step, so there many
simultaneous prompts share a step, which then takes some tens of milliseconds. The numbers for GPUs
are derived from arithmetic and bandwidth at released widths, not measured.
"""

from __future__ import annotations

from antiphon.deployment.schema import StageConfig

PREFILL_ROWS = 256
"""Most prompt rows of a step on a CPU."""

GPU_TEXT_ROWS, GPU_FRAME_ROWS = 2048, 4096
"""Most prompt rows of a step on a GPU, for text and for codec frames.

A row of codec frames takes a tenth of the arithmetic."""

ENCODED_AT_LEAST = 256
"""Least prompt rows that a call of an audio or vision tower counts for.

On a GPU the shortest recording takes some milliseconds. On a CPU a step has one such call."""

GPU_PREPARED_AT_ONCE = 8
"""Most prompts prepared by a GPU engine's thread between two steps: at most 3 ms."""

GPU_SMALL_THREADS = 4
"""Threads for small prompts with a GPU, which leaves the host's cores free."""


def on_gpu(config: StageConfig) -> bool:
    """Return whether the stage runs on a GPU."""
    return config.device.startswith("cuda")


def text_rows(config: StageConfig) -> int:
    """Return the most prompt rows in a text step: the setting, or the device's default."""
    return config.prefill_rows or (GPU_TEXT_ROWS if on_gpu(config) else PREFILL_ROWS)


def frame_rows(config: StageConfig) -> int:
    """Return the most prompt rows in a step that draws codec frames."""
    return config.prefill_rows or (GPU_FRAME_ROWS if on_gpu(config) else PREFILL_ROWS)
