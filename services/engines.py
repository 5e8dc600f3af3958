"""Which engine a stage runs, from its configuration and what this process has."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument

AUTO, TORCH, VLLM = "auto", "torch", "vllm"


def require_torch(role: str, config: StageConfig) -> None:
    """Raise `InvalidArgument` unless the configuration asks for the torch engine and no more."""
    if config.engine not in (AUTO, TORCH):
        raise InvalidArgument(
            f"{role}: no engine {config.engine!r}; it has {TORCH!r}", field="engine"
        )
    if config.engine_args:
        raise InvalidArgument(
            f"{role}: engine_args: the engine {TORCH} takes none, got {sorted(config.engine_args)}",
            field="engine_args",
        )


def choose_engine(role: str, config: StageConfig, *, vllm_runs: Callable[[], bool]) -> str:
    """`torch` or `vllm`; `auto` takes vllm on a CUDA device where `vllm_runs`.

    Raises `InvalidArgument` for any other name, and for arguments that torch does not take.
    """
    if config.engine not in (AUTO, TORCH, VLLM):
        raise InvalidArgument(
            f"{role}: no engine {config.engine!r}; known: {AUTO}, {TORCH}, {VLLM}", field="engine"
        )
    if config.engine == VLLM:
        return VLLM
    if config.engine == AUTO and config.device.partition(":")[0] == "cuda" and vllm_runs():
        return VLLM
    require_torch(role, config)
    return TORCH
