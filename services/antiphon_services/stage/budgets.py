"""How much of others' prompts a step takes on, by what it runs on.

Whoever decodes in the same step waits for these rows. A CPU computes them one after the other,
while a GPU is done with a few hundred in the time that it takes to launch the step: so there the
prompts of many that come together share a step, which then takes some tens of milliseconds. The
numbers for GPUs are from arithmetic and bandwidth at released widths, not measured.
"""

from __future__ import annotations

from antiphon.deployment.schema import StageConfig

PREFILL_ROWS = 256
"""Most prompt rows of a step on a CPU."""

GPU_TEXT_ROWS, GPU_FRAME_ROWS = 2048, 4096
"""The same on a GPU where text is written, and where codec frames are drawn, of which a row is a
tenth of the arithmetic."""

ENCODED_AT_LEAST = 256
"""A call of an audio or vision tower counts as so many prompt rows at least: on a GPU it takes some
milliseconds for the shortest recording, and on a CPU a step has one."""

GPU_PREPARED_AT_ONCE = 8
"""Most prompts made between two steps by the engine's thread of a GPU: at most 3 ms."""

GPU_SMALL_THREADS = 4
"""Threads that make small prompts where a GPU computes, so that the host has cores for them."""


def on_gpu(config: StageConfig) -> bool:
    """Whether the stage computes on one."""
    return config.device.startswith("cuda")


def text_rows(config: StageConfig) -> int:
    """Most prompt rows in a step that writes text: the setting, or what suits the device."""
    return config.prefill_rows or (GPU_TEXT_ROWS if on_gpu(config) else PREFILL_ROWS)


def frame_rows(config: StageConfig) -> int:
    """The same of a step that draws codec frames."""
    return config.prefill_rows or (GPU_FRAME_ROWS if on_gpu(config) else PREFILL_ROWS)
