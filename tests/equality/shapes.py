"""The checkpoints that the services of these tests have, by the thinker's engine."""

from __future__ import annotations

import dataclasses

from antiphon_testkit.qwen3_omni.tiny_checkpoint import OTHER, SMALL

# Shape and seed. vLLM's attention on CPUs has no heads of 16.
CHECKPOINTS = {
    "torch": {"small": (SMALL, 0), "other": (OTHER, 0)},
    "vllm": {"small": (dataclasses.replace(SMALL, head_dim=32), 5), "other": (OTHER, 0)},
}
