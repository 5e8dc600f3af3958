"""Plans a stage's GPU memory before anything is loaded.

The weights' size is read from file headers, that of keys and values from the configuration. Memory
left after weights and working memory goes to the slots; `context_limit: fits` makes them as long as
that allows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.lm.memory import WORKING_BYTES
from antiphon_services.stage.engines import FITS, TORCH, VLLM, context_limit
from antiphon_services.stage.precision import BFLOAT16, FLOAT32, dtype_name

VLLM_WORKING_BYTES = 3 << 30
"""Estimate of the working memory that vLLM measures at startup, within its share."""
VLLM_SHARE = 0.92
"""Default of `gpu_memory_utilization`."""
FP8_SHARE = 1.1
"""Estimate of bytes per weight if vLLM quantizes on load, including unquantized parts."""
UNPLANNED = frozenset({"cpu_offload_gb", "num_gpu_blocks_override", "pipeline_parallel_size"})
"""vLLM arguments that move memory elsewhere; with these the plan rejects nothing."""
LEAST_POSITIONS = 512
"""Least context of a stage. Shorter segments hold no conversation."""
STEP = 64
"""Planned contexts are multiples of this."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cached:
    """Memory of each position of a segment, in numbers.

    `layers` with `key_heads` of `head_dim` numbers, and a row of `row` numbers for a later stage.
    """

    layers: int
    key_heads: int
    head_dim: int
    row: int = 0

    @classmethod
    def of(cls, text: Any, *, row: int = 0) -> Cached:
        """Return that of a decoder's configuration, from transformers or as a mapping."""
        told = text if isinstance(text, dict) else text.to_dict()
        heads = told["num_attention_heads"]
        return cls(
            told["num_hidden_layers"],
            told.get("num_key_value_heads") or heads,
            told.get("head_dim") or told["hidden_size"] // heads,
            row,
        )

    @property
    def numbers(self) -> int:
        """Numbers in keys and values of all layers, and the row."""
        return 2 * self.layers * self.key_heads * self.head_dim + self.row


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of a stage on its device, in bytes.

    Of its `room`, `weights` and `working` memory come first. The rest holds `slots` segments with
    `position_bytes` per position. An engine with paged memory counts as one slot, for its longest
    segment. If the plan is not `exact`, `working` is an estimate of what the engine measures
    itself.
    """

    room: int
    weights: int
    working: int
    position_bytes: int
    slots: int
    exact: bool = True

    @property
    def for_slots(self) -> int:
        """Bytes left for keys and values."""
        return max(self.room - self.weights - self.working, 0)

    @property
    def positions(self) -> int:
        """Longest length of all slots at once, a multiple of `STEP`."""
        return self.for_slots // (self.slots * self.position_bytes) // STEP * STEP

    def cache(self, limit: int) -> int:
        """Return the bytes of keys and values of all slots at full length."""
        return self.slots * limit * self.position_bytes

    def fits(self, limit: int) -> bool:
        """Return whether all slots fit at full length."""
        return self.cache(limit) <= self.for_slots

    def refuses(self, limit: int) -> bool:
        """Return whether the stage certainly cannot start, judging before it is loaded."""
        spare = 0 if self.exact else self.working
        return self.cache(limit) > self.room - self.weights - self.working + spare

    def describe(self, limit: int) -> str:
        """Return one line: memory by part, and what would fit."""
        taken = (
            f"weights {_gb(self.weights)} GB, keys and values {_gb(self.cache(limit))} GB "
            f"({self.slots} slots of {limit} positions), working memory {_gb(self.working)} GB, "
            f"of {_gb(self.room)} GB"
        )
        slots = self.for_slots // max(limit * self.position_bytes, 1)
        return f"{taken}; {slots} slots of {limit} or {self.slots} of {self.positions} would fit"


def plan_stage(
    config: StageConfig,
    numbers: int,
    stored: int,
    cached: Cached,
    *,
    free: int,
    total: int,
    engine: str = TORCH,
) -> MemoryPlan:
    """Return the plan of a decoder with `numbers` weights in `stored` bytes.

    The GPU has `total` bytes, of which `free` are free.
    """
    size = 4 if dtype_name(engine, config, on_gpu=BFLOAT16) == FLOAT32 else 2
    position_bytes = cached.numbers * size
    if engine != VLLM:
        return MemoryPlan(free, numbers * size, WORKING_BYTES, position_bytes, config.slots)
    arguments = config.engine_args
    # Quantized weights keep their stored size, and several GPUs share everything.
    ranks = int(arguments.get("tensor_parallel_size", 1))
    if arguments.get("quantization") == "fp8":
        # One byte each during loading; embeddings, head, norms and towers stay unquantized.
        stored = min(stored, int(FP8_SHARE * numbers))
    weights = stored // ranks
    if str(arguments.get("kv_cache_dtype", "")).startswith("fp8"):
        position_bytes = cached.numbers
    position_bytes = -(-position_bytes // ranks)
    if (paged := arguments.get("kv_cache_memory_bytes")) is not None:
        room = weights + VLLM_WORKING_BYTES + int(paged)
        return MemoryPlan(room, weights, VLLM_WORKING_BYTES, position_bytes, 1)
    share = float(arguments.get("gpu_memory_utilization", VLLM_SHARE))
    room = min(int(total * share), free)
    return MemoryPlan(room, weights, VLLM_WORKING_BYTES, position_bytes, 1, exact=False)


def limit_with_rows(
    role: str,
    config: StageConfig,
    text: Any,
    model_dir: Path,
    prefix: str,
    *,
    engine: str = TORCH,
    skip: str = "",
) -> int:
    """`planned_limit` of a decoder with configuration `text` that keeps a row per position for a
    later stage."""
    return planned_limit(
        role,
        config,
        text.max_position_embeddings,
        model_dir,
        prefix,
        Cached.of(text, row=text.hidden_size),
        engine=engine,
        skip=skip,
    )


def planned_limit(
    role: str,
    config: StageConfig,
    most: int,
    model_dir: Path,
    prefix: str,
    cached: Cached,
    *,
    engine: str = TORCH,
    tables: int = 0,
    skip: str = "",
    file: str = "",
) -> int:
    """Return the positions of a segment: `engines.context_limit`, or what fits.

    The latter if configured, which is the default on a GPU. Logs the plan of a stage on a GPU. The
    stage loads the tensors of `model_dir`, or of its `file`, that begin with `prefix`, except those
    that begin with `skip`, and creates `tables` numbers from them. Raises `InvalidArgument` if
    fewer than `LEAST_POSITIONS`, or than the setting, fit.
    """
    if not config.device.startswith("cuda"):
        return context_limit(role, config, most)
    weights = Weights(model_dir, file)
    numbers, stored = weights.sizes(prefix)
    numbers -= weights.sizes(skip)[0] if skip else 0
    free, total = _vllm_memory() if engine == VLLM else _memory(config.device)
    plan = plan_stage(
        config, numbers + tables, stored, cached, free=free, total=total, engine=engine
    )
    if isinstance(config.context_limit, int):
        limit = context_limit(role, config, most)
        if plan.refuses(limit) and not UNPLANNED & config.engine_args.keys():
            raise InvalidArgument(
                f"{role}: context_limit {config.context_limit} does not fit on {config.device}: "
                f"{plan.describe(limit)}; {_remedy(plan, most)}",
                field="context_limit",
            )
        say = log.info if plan.fits(limit) else log.warning
        say("%s: memory plan: %s", role, plan.describe(limit))
        return limit
    limit = min(most, plan.positions)
    if limit < min(LEAST_POSITIONS, most):
        raise InvalidArgument(
            f"{role}: context_limit: {FITS} finds no room on {config.device} for "
            f"{LEAST_POSITIONS} positions a slot: {plan.describe(LEAST_POSITIONS)}; "
            f"{_remedy(plan, most)}",
            field="context_limit",
        )
    log.info("%s: context_limit is %d (%s): %s", role, limit, FITS, plan.describe(limit))
    return limit


def check_room(
    role: str, config: StageConfig, parts: Sequence[tuple[Weights, str]], *, streams: int = 0
) -> None:
    """Log the memory plan of a stage on a GPU without keys and values per segment.

    It loads the tensors of each part whose names begin with the prefix, and has a cache of
    `streams` bytes. Raises `InvalidArgument` if weights and cache do not fit.
    """
    if not config.device.startswith("cuda"):
        return
    size = 4 if dtype_name(role, config) == FLOAT32 else 2
    weights = size * sum(each.sizes(prefix)[0] for each, prefix in parts)
    free, _ = _memory(config.device)
    cache = f"cache of streams {_gb(streams)} GB, " if streams else ""
    plan = f"weights {_gb(weights)} GB, {cache}working memory {_gb(WORKING_BYTES)} GB"
    told = f"{plan}, of {_gb(free)} GB"
    if weights + streams > free:
        field, remedy = "device", "free the GPU's memory"
        if weights <= free:
            field = "flow_cache_bytes"
            remedy = f"lower flow_cache_bytes to {free - weights} or less, or {remedy}"
        raise InvalidArgument(
            f"{role}: does not fit on {config.device}: {told}; {remedy}", field=field
        )
    fits = weights + streams + WORKING_BYTES <= free
    log.log(logging.INFO if fits else logging.WARNING, "%s: memory plan: %s", role, told)


def _remedy(plan: MemoryPlan, most: int) -> str:
    """Return what to set if the setting does not fit."""
    freeing = "lower slots, or free the GPU's memory"
    if plan.positions < min(LEAST_POSITIONS, most):
        return freeing
    return f"set context_limit to {min(plan.positions, most)} or `{FITS}`, {freeing}"


def _memory(device: str) -> tuple[int, int]:
    """Return free and total bytes of a GPU."""
    free, total = torch.cuda.mem_get_info(torch.device(device))
    return free, total


def _vllm_memory() -> tuple[int, int]:
    """Return free and total bytes of the first GPU visible to vLLM, assuming all of it free.

    CUDA is not initialized in this process: a context would take memory, and vLLM computes in its
    own processes. By now the first visible GPU is the configured one.
    """
    from vllm.platforms import current_platform

    total: int = current_platform.get_device_total_memory()
    return total, total


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"
