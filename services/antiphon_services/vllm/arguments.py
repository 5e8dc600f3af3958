"""Converts a stage's configuration to the arguments for vLLM's engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from vllm import AsyncEngineArgs
from vllm.config import StructuredOutputsConfig
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.values.sampling import MAX_TOP_LOGPROBS
from antiphon_services.stage.engines import VLLM
from antiphon_services.stage.precision import BFLOAT16, FLOAT32, dtype_name
from antiphon_services.vllm.media import ARGUMENT, MediaLimits
from antiphon_services.vllm.row_receiver import RowAddress

CPU_CACHE_BYTES = 1 << 30
"""The amount of paged memory on CPUs, in addition to the memory for one full context. Without a
limit, vLLM would use most of the host's memory.
"""

OWN_KEYS = {
    "model": "use the deployment's `model` instead",
    "tokenizer": "the checkpoint's",
    "skip_tokenizer_init": "the checkpoint's tokenizer is required",
    "dtype": "use the stage's `dtype` instead",
    "max_model_len": "use the stage's `context_limit` instead",
    "hf_overrides": "the tapped model is chosen there",
    "kv_transfer_config": "the stage uses it to receive hidden rows",
    "mm_processor_kwargs": "the size of images is determined by preprocessor_config.json",
    "enable_mm_embeds": "recordings are passed as features",
    "runner": "the stage generates",
    "convert": "the stage generates",
    "disable_log_stats": "set the stage's `metrics_listen` instead",
    "logprobs_mode": (
        "log probabilities are always those of the model, before temperature and penalties"
    ),
}
"""Arguments that the stage sets itself. Each value is the reason, or the setting to use instead."""

SCHEMA_BACKEND = "xgrammar"
"""The compiler for JSON schemas. With vLLM's `auto`, the first schema would determine the compiler
for all later schemas.
"""

PARALLEL = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}
"""Arguments that may require more than one process."""

TAPPING_DRAFTERS = ("eagle3", "extract_hidden_states")
"""Methods for speculative decoding that use the model's hidden state output themselves."""


@dataclass(frozen=True, slots=True)
class TextShape:
    """The sizes of a checkpoint's language model.

    `place` is the path, within `config.json`, of the object that contains them. It is empty if they
    are at the top level.
    """

    place: str
    layers: int
    key_value_heads: int
    head_dim: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Tap:
    """The `architecture` of the model that stores hidden rows, and the address to which the rows
    are sent.
    """

    architecture: str
    rows: RowAddress


def engine_arguments(
    model_dir: Path,
    config: StageConfig,
    shape: TextShape,
    *,
    context_limit: int,
    media: MediaLimits,
    overrides: Mapping[str, Any],
    tap: Tap | None,
) -> AsyncEngineArgs:
    """Return the engine arguments for a checkpoint's language model.

    `media` contains the media limits. `overrides` replaces values in the checkpoint's
    configuration. If `tap` is None, the unmodified model is used. Raises `InvalidArgument` if vLLM
    or this stage doesn't accept an argument, and `FailedPrecondition` if vLLM's attention doesn't
    support the checkpoint on this device.
    """
    given = config.engine_args
    _check(given, config)
    _check_heads(shape, config)
    arguments: dict[str, Any] = {
        "model": str(model_dir),
        "dtype": dtype_name(VLLM, config, on_gpu=BFLOAT16),
        "max_model_len": context_limit,
        "max_num_seqs": config.slots,
        "enable_prefix_caching": True,
        # Features are computed for every request, so caching them here saves little. In addition,
        # the two halves of vLLM's cache can become inconsistent when a request is aborted.
        "mm_processor_cache_gb": 0,
        # The stage sets the default sampling parameters itself.
        "generation_config": "vllm",
        # This disables vLLM's log line. Its measurements are exported together with the stage's
        # metrics.
        "disable_log_stats": True,
        # Progress bars are useless in a log, and their lock outlives a process that is killed.
        "use_tqdm_on_load": False,
        "hf_overrides": dict(overrides),
    }
    if config.device == "cpu":
        cache = CPU_CACHE_BYTES + context_limit * _position_bytes(shape, config)
        arguments |= {"enforce_eager": True, "skip_mm_profiling": True}
        arguments |= {"kv_cache_memory_bytes": cache}
        if not PARALLEL & given.keys():
            arguments |= {"distributed_executor_backend": "uni"}
    arguments |= {"enable_mm_embeds": media.audio > 0}
    if tap is not None:
        arguments |= _tapped(overrides, tap, config.memory.hidden_row_bytes)
    try:
        structured = StructuredOutputsConfig(
            **{"backend": SCHEMA_BACKEND} | given.get("structured_outputs_config", {})
        )
        own = {ARGUMENT: dataclasses.asdict(media), "structured_outputs_config": structured}
        return AsyncEngineArgs(**arguments | given | own)
    except (ValidationError, ValueError, TypeError) as error:
        raise InvalidArgument(f"engine_args: {error}", field="engine_args") from error


def _check(given: Mapping[str, Any], config: StageConfig) -> None:
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in given:
        if name not in known:
            raise InvalidArgument(f"engine_args: vLLM has no argument {name}", field="engine_args")
        if name in OWN_KEYS:
            raise InvalidArgument(
                f"engine_args: {name} can't be set: {OWN_KEYS[name]}", field="engine_args"
            )
    most = given.get("max_logprobs")
    if isinstance(most, int) and 0 <= most < MAX_TOP_LOGPROBS:
        raise InvalidArgument(
            f"engine_args: max_logprobs must be at least {MAX_TOP_LOGPROBS}, the maximum that "
            "clients can request; leave it out",
            field="engine_args",
        )
    structured = given.get("structured_outputs_config", {})
    if not isinstance(structured, Mapping):
        raise InvalidArgument(
            "engine_args: structured_outputs_config must be a mapping", field="engine_args"
        )
    if structured.get("backend", SCHEMA_BACKEND) != SCHEMA_BACKEND:
        raise InvalidArgument(
            "engine_args: structured_outputs_config: backend must be xgrammar, because the "
            "stage needs it to limit the cost of a schema; leave it out",
            field="engine_args",
        )
    drafter = given.get("speculative_config") or {}
    if drafter.get("method") in TAPPING_DRAFTERS:
        raise InvalidArgument(
            f"engine_args: speculative_config: {drafter['method']} uses the hidden rows that "
            "the next stage needs; use another method",
            field="engine_args",
        )
    kind = config.device.partition(":")[0]
    if current_platform.device_type != kind:
        raise InvalidArgument(
            f"device: the installed vLLM supports {current_platform.device_type}, but not "
            f"{config.device}",
            field="device",
        )


def _check_heads(shape: TextShape, config: StageConfig) -> None:
    """Validate the head sizes on CPUs. Otherwise vLLM would fail in its first step and would be
    restarted over and over again.
    """
    size = shape.head_dim
    if config.device == "cpu" and not CPUAttentionBackend.supports_head_size(size):
        known = ", ".join(map(str, CPUAttentionBackend.get_supported_head_sizes()))
        raise FailedPrecondition(
            f"config.json: {f'{shape.place}.head_dim'.lstrip('.')} is {size}, but on CPUs, vLLM "
            f"only supports {known}; use the engine torch"
        )


def _tapped(overrides: Mapping[str, Any], tap: Tap, waiting_bytes: int) -> dict[str, Any]:
    """Return the arguments for the tapped model, and for the connector that sends its rows."""
    return {
        "hf_overrides": {**overrides, "architectures": [tap.architecture]},
        "kv_transfer_config": {
            "kv_connector": "RowConnector",
            "kv_connector_module_path": "antiphon_services.vllm.connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {
                **dataclasses.asdict(tap.rows),
                "waiting_bytes": waiting_bytes,
            },
        },
    }


def _position_bytes(shape: TextShape, config: StageConfig) -> int:
    """Return the amount of paged memory needed for one position. It consists of the keys and values
    of all layers and the tapped row.
    """
    numbers = 2 * shape.layers * shape.key_value_heads * shape.head_dim + shape.hidden
    return numbers * (4 if dtype_name(VLLM, config, on_gpu=BFLOAT16) == FLOAT32 else 2)
