"""Plans a stage's memory before anything is loaded.

The size of the weights is determined from file headers, and the size of the keys and values is
computed from the configuration. The remaining memory is used for slots. With `context_limit: fits`,
the slots are as long as this memory allows. A family's `memory` function returns the `StageMemory`
of a stage, which `load` checks and `antiphon plan` displays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.runtime.checkpoint.weights import StoredSize, Weights
from antiphon_services.lm.memory import WORKING_BYTES
from antiphon_services.stage.budgets import on_gpu
from antiphon_services.stage.engines import FITS, TORCH, VLLM, context_limit
from antiphon_services.stage.precision import BFLOAT16, FLOAT32, dtype_name

VLLM_WORKING_BYTES = 3 << 30
"""An estimate of the working memory that vLLM measures at startup. It is part of vLLM's memory
share.
"""
VLLM_SHARE = 0.92
"""vLLM's default for `gpu_memory_utilization`."""
FP8_SHARE = 1.1
"""An estimate of the number of bytes per weight if vLLM quantizes weights while loading. It
accounts for the parts that are not quantized.
"""
UNPLANNED = frozenset({"cpu_offload_gb", "num_gpu_blocks_override", "pipeline_parallel_size"})
"""vLLM arguments that move memory elsewhere. If one of them is set, no configuration is rejected
because of the plan.
"""
CONTEXT_BYTES = 700_000_000
"""An estimate of the GPU memory that CUDA uses in each process."""
LEAST_POSITIONS = 512
"""The minimum context length of a stage. Shorter segments aren't long enough for a conversation."""
STEP = 64
"""Planned context lengths are multiples of this value."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cached:
    """The amount of memory, as a count of numbers, that each position of a segment needs.

    It consists of the keys and values of `layers` layers with `key_heads` heads of size `head_dim`,
    and of `row` numbers for a later stage.
    """

    layers: int
    key_heads: int
    head_dim: int
    row: int = 0

    @classmethod
    def of(cls, text: Any, *, row: int = 0) -> Cached:
        """Return the memory that a decoder configuration requires. `text` is a transformers
        configuration or a mapping.
        """
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
        """The number of elements in all layers' keys and values and in the row."""
        return 2 * self.layers * self.key_heads * self.head_dim + self.row


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A plan for the memory of a stage on its device, in bytes.

    `room` is the available memory. Subtracting `weights` and `working` leaves the memory for
    `slots` segments, each of which needs `position_bytes` bytes per position. An engine with paged
    memory counts as a single slot that holds its longest segment. If the plan is not `exact`,
    `working` is only an estimate of a value that the engine measures itself.
    """

    room: int
    weights: int
    working: int
    position_bytes: int
    slots: int
    exact: bool = True

    @property
    def for_slots(self) -> int:
        """The number of bytes left for keys and values."""
        return max(self.room - self.weights - self.working, 0)

    @property
    def positions(self) -> int:
        """The maximum length that all slots can have at the same time. This is a multiple of
        `STEP`.
        """
        return self.for_slots // (self.slots * self.position_bytes) // STEP * STEP

    def cache(self, limit: int) -> int:
        """Return the size of the keys and values, in bytes, if all slots are full."""
        return self.slots * limit * self.position_bytes

    def fits(self, limit: int) -> bool:
        """Return whether there is enough memory for all slots to be full."""
        return self.cache(limit) <= self.for_slots

    def refuses(self, limit: int) -> bool:
        """Return whether loading the stage would certainly run out of memory."""
        spare = 0 if self.exact else self.working
        return self.cache(limit) > self.room - self.weights - self.working + spare

    def describe(self, limit: int) -> str:
        """Return a line that describes how the memory is used and which limit would fit."""
        taken = (
            f"weights: {_gb(self.weights)} GB, keys and values: {_gb(self.cache(limit))} GB "
            f"({self.slots} slots of {limit} positions), working memory: {_gb(self.working)} "
            f"GB, available: {_gb(self.room)} GB"
        )
        slots = self.for_slots // max(limit * self.position_bytes, 1)
        return f"{taken}; {slots} slots of {limit} or {self.slots} of {self.positions} would fit"


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a checkpoint that a stage loads.

    It consists of all tensors whose names begin with `prefix`, except for those whose names begin
    with one of the prefixes in `skip`. The tensors are converted to `dtype`, or to the stage's
    dtype if it is empty. If `on_host` is true, the part stays in host memory, no matter which
    device the stage uses.
    """

    weights: Weights
    prefix: str = ""
    skip: tuple[str, ...] = ()
    dtype: str = ""
    on_host: bool = False

    @classmethod
    def of_tensor(cls, weights: Weights, name: str) -> StoredPart:
        """Return a part that consists of a single tensor."""
        longer = (each for each in weights.files if each.startswith(name) and each != name)
        return cls(weights, name, tuple(longer))

    def sizes(self) -> dict[str, StoredSize]:
        """Return the sizes of the stored tensors by dtype. This only reads file headers."""
        return self.weights.sizes(self.prefix, self.skip)

    def loaded(self, dtype: str) -> int:
        """Return the size in bytes after loading. Integer tensors keep their dtype."""
        size = number_bytes(self.dtype or dtype)
        return sum(
            each.numbers * size if kind.startswith(("float", "bfloat")) else each.bytes
            for kind, each in self.sizes().items()
        )


def _no_state() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The memory that a stage needs. It can be determined before the stage is loaded.

    The stage loads the parts in `stored` and computes tables with a total of `tables` numbers from
    them. Both use the dtype `dtype`. `cached` describes the memory for each position of a segment,
    or is None if positions don't need any memory. `most` is the maximum number of positions that
    the checkpoint supports. `session_state` returns the size, in bytes, of the state that a session
    has regardless of its length. `shared` is the size, in bytes, of a cache that all sessions
    share.
    """

    role: str
    config: StageConfig
    stored: tuple[StoredPart, ...]
    dtype: str
    engine: str = TORCH
    tables: int = 0
    cached: Cached | None = None
    most: int = 0
    shared: int = 0
    session_state: Callable[[], int] = _no_state

    @property
    def weights(self) -> int:
        """The size of the weights and tables on the device, in bytes."""
        loaded = sum(each.loaded(self.dtype) for each in self.stored if not each.on_host)
        return loaded + self.tables * number_bytes(self.dtype)

    @property
    def host_weights(self) -> int:
        """The size of the weights that stay in host memory, in bytes."""
        return sum(each.loaded(self.dtype) for each in self.stored if each.on_host)

    @property
    def position_bytes(self) -> int:
        """The number of bytes that each position of a segment takes up on the device."""
        return self.cached.numbers * number_bytes(self.dtype) if self.cached else 0

    @property
    def stored_bytes(self) -> dict[str, int]:
        """The sizes of the stored tensors in bytes, by dtype."""
        found: dict[str, int] = {}
        for part in self.stored:
            for kind, size in part.sizes().items():
                found[kind] = found.get(kind, 0) + size.bytes
        return found

    def plan(self, *, free: int, total: int) -> MemoryPlan:
        """Return the plan for a decoder on a GPU that has `total` bytes of memory, of which `free`
        bytes are available.
        """
        assert self.cached is not None, "positions take memory"
        if self.engine != VLLM:
            return MemoryPlan(
                free, self.weights, WORKING_BYTES, self.position_bytes, self.config.slots
            )
        sizes = [size for each in self.stored for size in each.sizes().values()]
        return plan_stage(
            self.config,
            sum(each.numbers for each in sizes) + self.tables,
            sum(each.bytes for each in sizes),
            self.cached,
            free=free,
            total=total,
            engine=VLLM,
        )


def decoder_memory(
    role: str,
    config: StageConfig,
    text: Any,
    *stored: StoredPart,
    row: int = 0,
    engine: str = TORCH,
    tables: int = 0,
) -> StageMemory:
    """Return the memory of a decoder. `text` is its configuration, as in `Cached.of`.

    Each position includes `row` numbers for a later stage.
    """
    told = text if isinstance(text, dict) else text.to_dict()
    return StageMemory(
        role,
        config,
        stored,
        dtype_name(role, config, on_gpu=BFLOAT16),
        engine,
        tables=tables,
        cached=Cached.of(told, row=row),
        most=int(told["max_position_embeddings"]),
    )


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
    """Return the plan for a decoder whose `numbers` weights take up `stored` bytes in the
    checkpoint.

    The GPU has `total` bytes of memory, of which `free` bytes are available.
    """
    size = number_bytes(dtype_name(engine, config, on_gpu=BFLOAT16))
    position_bytes = cached.numbers * size
    if engine != VLLM:
        return MemoryPlan(free, numbers * size, WORKING_BYTES, position_bytes, config.slots)
    arguments = config.engine_args
    # Quantized weights keep their stored size. With several GPUs, the weights, keys and values are
    # divided among them.
    ranks = int(arguments.get("tensor_parallel_size", 1))
    if arguments.get("quantization") == "fp8":
        # Each weight needs one byte during loading. Embeddings, head, norms and towers are not
        # quantized.
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


def planned_limit(memory: StageMemory) -> int:
    """Return the maximum number of positions in a segment. This is either `engines.context_limit`
    or the number that fits into memory.

    The latter is used if it is configured, which is the default on a GPU. On a GPU, the stage's
    plan is logged. Raises `InvalidArgument` if the number that fits is less than `LEAST_POSITIONS`
    or less than the configured number.
    """
    role, config, most = memory.role, memory.config, memory.most
    if not on_gpu(config):
        return context_limit(role, config, most)
    free, total = _vllm_memory() if memory.engine == VLLM else _memory(config.device)
    plan = memory.plan(free=free, total=total)
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
            f"{role}: context_limit: {FITS} can't find room on {config.device} for at least "
            f"{LEAST_POSITIONS} positions per slot: {plan.describe(LEAST_POSITIONS)}; "
            f"{_remedy(plan, most)}",
            field="context_limit",
        )
    log.info("%s: context_limit is %d (%s): %s", role, limit, FITS, plan.describe(limit))
    return limit


def check_room(
    describe: Callable[[Path, StageConfig], StageMemory], model_dir: Path, config: StageConfig
) -> None:
    """Log the memory plan of a stage on a GPU that doesn't store keys and values per segment.

    `describe` is the family's `memory` function. On a CPU, it isn't called, because it reads files
    that `load` reads again. Raises `InvalidArgument` if the weights and the shared cache don't fit
    into memory.
    """
    if not on_gpu(config):
        return
    memory = describe(model_dir, config)
    role, streams, weights = memory.role, memory.shared, memory.weights
    free, _ = _memory(config.device)
    cache = f"stream cache: {_gb(streams)} GB, " if streams else ""
    plan = f"weights: {_gb(weights)} GB, {cache}working memory: {_gb(WORKING_BYTES)} GB"
    told = f"{plan}, available: {_gb(free)} GB"
    if weights + streams > free:
        field, remedy = "device", "free GPU memory"
        if weights <= free:
            field = "memory.flow_cache_bytes"
            remedy = f"reduce {field} to at most {free - weights}, or {remedy}"
        raise InvalidArgument(
            f"{role}: does not fit on {config.device}: {told}; {remedy}", field=field
        )
    fits = weights + streams + WORKING_BYTES <= free
    log.log(logging.INFO if fits else logging.WARNING, "%s: memory plan: %s", role, told)


def _remedy(plan: MemoryPlan, most: int) -> str:
    """Return what the error message should suggest if the configured limit doesn't fit."""
    freeing = "reduce slots, or free GPU memory"
    if plan.positions < min(LEAST_POSITIONS, most):
        return freeing
    return f"set context_limit to {min(plan.positions, most)} or `{FITS}`, {freeing}"


def _memory(device: str) -> tuple[int, int]:
    """Return a GPU's free memory and total memory in bytes."""
    free, total = torch.cuda.mem_get_info(torch.device(device))
    return free, total


def _vllm_memory() -> tuple[int, int]:
    """Return the free memory and total memory, in bytes, of the first GPU that is visible to vLLM.
    All of it is assumed to be free.

    This doesn't initialize CUDA, because vLLM computes in separate processes and a CUDA context in
    this process would only take up memory. At this point, the first visible GPU is the configured
    one.
    """
    from vllm.platforms import current_platform

    total: int = current_platform.get_device_total_memory()
    return total, total


def number_bytes(dtype: str) -> int:
    """Return the size of a number in bytes."""
    return 4 if dtype == FLOAT32 else 2


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"
