"""The maximum number of prompt rows in a step, depending on the device.

Segments that decode in the same step have to wait for these rows. A CPU computes them one after
another, whereas a GPU computes a few hundred of them in the time that it takes to launch the step.
On a GPU, many prompts that arrive at the same time can therefore share a step, which then takes
some tens of milliseconds. The numbers for GPUs were not measured. They were derived from the
arithmetic and bandwidth that the released models' widths require.
"""

from __future__ import annotations

from antiphon.deployment.schema import StageConfig

PREFILL_ROWS = 256
"""The maximum number of prompt rows in a step on a CPU."""

GPU_TEXT_ROWS, GPU_FRAME_ROWS = 2048, 4096
"""The maximum number of prompt rows in a step on a GPU, for text and for codec frames.

A codec frame row needs only a tenth of the arithmetic.
"""

ENCODED_AT_LEAST = 256
"""A call of an audio or vision tower counts as at least this many prompt rows.

On a GPU, even the shortest recording takes some milliseconds. On a CPU, a step contains only one
such call.
"""

GPU_PREPARED_AT_ONCE = 8
"""The maximum number of prompts that the engine's thread prepares between two steps if a GPU is
used. This takes 3 ms at most.
"""

GPU_SMALL_THREADS = 4
"""The number of threads that prepare small prompts if a GPU is used. The CPU cores are mostly idle
in this case.
"""


def on_gpu(config: StageConfig) -> bool:
    """Return whether the stage runs on a GPU."""
    return config.device.startswith("cuda")


def text_rows(config: StageConfig) -> int:
    """Return the maximum number of prompt rows in a step that generates text. This is the
    configured value or, by default, the value for the device.
    """
    return config.torch.prefill_rows or (GPU_TEXT_ROWS if on_gpu(config) else PREFILL_ROWS)


def frame_rows(config: StageConfig) -> int:
    """Return the maximum number of prompt rows in a step that draws codec frames."""
    return config.torch.prefill_rows or (GPU_FRAME_ROWS if on_gpu(config) else PREFILL_ROWS)
