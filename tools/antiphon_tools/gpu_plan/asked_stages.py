"""Asks the stages of a model family how much memory they need. Imports torch."""

from __future__ import annotations

from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import CLIENT, Pipeline
from antiphon_services.lm.memory import WORKING_BYTES
from antiphon_services.stage.engines import VLLM
from antiphon_services.stage.loading import stage_memory
from antiphon_services.stage.memory_plan import CONTEXT_BYTES, VLLM_WORKING_BYTES, StageMemory
from antiphon_tools.gpu_plan.stage_needs import StageNeeds

POSITIONS = 8192
"""The default session length, unless the checkpoint only supports shorter sessions."""
HOST_BYTES = 1 << 30
"""An estimate of the host memory that a process with torch uses, not counting weights."""


def stage_needs(
    pipeline: Pipeline,
    role: str,
    folder: Path,
    config: StageConfig,
    *,
    sessions: int | None,
    positions: int | None,
) -> StageNeeds | None:
    """Return the memory requirements of a stage, or None if its family does not declare them.

    `sessions` and `positions` default to the settings in `config`. Raises `InvalidArgument` if the
    checkpoint does not support this many positions, as well as the errors of the stage's `memory`
    function.
    """
    memory = stage_memory(pipeline, role, folder, config)
    if memory is None:
        return None
    on_gpu = config.device.startswith("cuda")
    weights, working, position_bytes = memory.weights, 0, memory.position_bytes
    if memory.engine == VLLM and memory.cached:
        # The size of the GPU does not affect the values that are used here.
        planned = memory.plan(free=0, total=0)
        weights, position_bytes = planned.weights, planned.position_bytes
    if on_gpu:
        working = VLLM_WORKING_BYTES if memory.engine == VLLM else WORKING_BYTES + CONTEXT_BYTES
    return StageNeeds(
        role,
        memory.engine,
        memory.dtype,
        memory.stored_bytes,
        weights,
        working,
        memory.shared,
        position_bytes,
        memory.session_state(),
        memory.most,
        _positions(memory, positions),
        sessions or config.slots,
        HOST_BYTES + memory.host_weights,
        _host_bounds(pipeline, role, config),
    )


def _positions(memory: StageMemory, asked: int | None) -> int:
    """Return the length of a session, or 0 if positions do not require memory."""
    if not memory.cached:
        return 0
    configured = memory.config.context_limit
    if asked is None and isinstance(configured, int):
        asked = configured or memory.most
    if asked is None:
        return min(POSITIONS, memory.most)
    if asked > memory.most and memory.config.context_limit == asked:
        raise InvalidArgument(
            f"{memory.role}: context_limit {asked} exceeds the checkpoint's maximum of "
            f"{memory.most}; reduce it",
            field="context_limit",
        )
    return min(asked, memory.most)


def _host_bounds(pipeline: Pipeline, role: str, config: StageConfig) -> dict[str, int]:
    """Return the limits on host memory usage that result from a stage's settings."""
    consumers = {
        each for edge in pipeline.outputs(role) for each in edge.consumers if each != CLIENT
    }
    found = {
        "sessions.mailbox_bytes": config.sessions.mailbox_bytes,
        "link.bytes": config.link.bytes * len(consumers),
        "link.slab_bytes": config.link.slab_bytes * len(consumers),
    }
    if any(edge.producer == CLIENT for edge in pipeline.inputs(role)):
        found["memory.kept_recording_bytes"] = config.memory.kept_recording_bytes
    if config.device.startswith("cuda"):
        found["copies.staging_bytes"] = config.copies.staging_bytes * (
            config.copies.async_to_host + config.copies.async_to_device
        )
    return {name: size for name, size in found.items() if size}
