"""The maximum number of prompt rows in a step, by device.

Segments that decode in the same step have to wait for these rows. A CPU computes them sequentially.
A GPU computes a few hundred of them in the time that it takes to launch the step. Therefore many
simultaneous prompts share a step on a GPU, which then takes some tens of milliseconds. The numbers
for GPUs were not measured. They are derived from the arithmetic and the bandwidth for the widths of
released models.
"""

from __future__ import annotations

from antiphon.deployment.schema import StageConfig

PREFILL_ROWS = 256
"""The maximum number of prompt rows in a step on a CPU."""

GPU_TEXT_ROWS, GPU_FRAME_ROWS = 2048, 4096
"""The maximum number of prompt rows in a step on a GPU, for text and for codec frames.

A row of codec frames needs a tenth of the arithmetic.
"""

ENCODED_AT_LEAST = 256
"""The minimum number of prompt rows that a call of an audio or vision tower counts as.

On a GPU, even the shortest recording takes some milliseconds. On a CPU, a step contains only one
such call.
"""

GPU_PREPARED_AT_ONCE = 8
"""The maximum number of prompts that a GPU engine's thread prepares between two steps. This takes 3
ms at most.
"""

GPU_SMALL_THREADS = 4
"""The number of threads for small prompts if a GPU is used, because the CPU cores are free in this
case.
"""


def on_gpu(config: StageConfig) -> bool:
    """Return whether the stage runs on a GPU."""
    return config.device.startswith("cuda")


def text_rows(config: StageConfig) -> int:
    """Return the maximum number of prompt rows in a text step. It is the setting or the default for
    the device.
    """
    return config.torch.prefill_rows or (GPU_TEXT_ROWS if on_gpu(config) else PREFILL_ROWS)


def frame_rows(config: StageConfig) -> int:
    """Return the maximum number of prompt rows in a step that draws codec frames."""
    return config.torch.prefill_rows or (GPU_FRAME_ROWS if on_gpu(config) else PREFILL_ROWS)
