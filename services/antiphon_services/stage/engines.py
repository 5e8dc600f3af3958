"""Selects a stage's engine based on its configuration and the installed packages."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument

AUTO, TORCH, VLLM = "auto", "torch", "vllm"
FITS = "fits"


def require_torch(role: str, config: StageConfig) -> None:
    """Raise `InvalidArgument` unless the configuration selects the torch engine without any
    arguments for it.
    """
    if config.engine not in (AUTO, TORCH):
        raise InvalidArgument(
            f"{role}: unsupported engine {config.engine!r}; use {TORCH!r}", field="engine"
        )
    if config.engine_args:
        raise InvalidArgument(
            f"{role}: engine_args: the engine {TORCH} accepts no arguments, got "
            f"{sorted(config.engine_args)}",
            field="engine_args",
        )


def refuse_fused(role: str, config: StageConfig) -> None:
    """Raise `InvalidArgument` if fused kernels are configured, for a stage that doesn't have
    any.
    """
    if config.torch.fused:
        raise InvalidArgument(
            f"torch.fused: the stage {role} has no fused kernels; set torch.fused to false",
            field="torch.fused",
        )


def check_device(config: StageConfig) -> None:
    """Raise an error if torch doesn't support the configured device.

    The error is `InvalidArgument` if the device's name is invalid. It is `FailedPrecondition` if
    this machine doesn't have the device, or if this build of torch doesn't support it.
    """
    import torch

    try:
        device = torch.device(config.device)
    except RuntimeError as error:
        raise InvalidArgument(
            f"device: unknown device {config.device!r}; use cpu, cuda or cuda:N", field="device"
        ) from error
    if device.type != "cuda":
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise FailedPrecondition(
            f"device: {config.device}: the installed torch {torch.__version__} was built "
            "without CUDA; install a version with CUDA, or set device to cpu",
            field="device",
        )
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise FailedPrecondition(
            f"device: {config.device}: torch found {count} CUDA devices; check the driver and "
            "CUDA_VISIBLE_DEVICES, or set another device",
            field="device",
        )


def require_plain_torch(role: str, config: StageConfig) -> None:
    """Validate the configuration of a stage that only runs on torch and doesn't have fused kernels.

    Raises the same errors as `require_torch`, `refuse_fused` and `check_device`.
    """
    require_torch(role, config)
    refuse_fused(role, config)
    check_device(config)


def choose_engine(role: str, config: StageConfig, *, vllm_runs: Callable[[], bool]) -> str:
    """Return `torch` or `vllm`. With `auto`, vllm is selected on a CUDA device if `vllm_runs`
    returns true.

    Raises `InvalidArgument` for any other name, and for arguments that torch doesn't accept.
    """
    if config.engine not in (AUTO, TORCH, VLLM):
        raise InvalidArgument(
            f"{role}: unsupported engine {config.engine!r}; use one of: {AUTO}, {TORCH}, {VLLM}",
            field="engine",
        )
    on_cuda = config.device.partition(":")[0] == "cuda"
    if config.engine == VLLM or (config.engine == AUTO and on_cuda and vllm_runs()):
        refuse_fused(f"{role} on {VLLM}", config)
        return VLLM
    require_torch(role, config)
    return TORCH


def context_limit(role: str, config: StageConfig, most: int) -> int:
    """Return the maximum number of positions in a segment. This is the configured value or, by
    default, the checkpoint's limit `most`.

    The available memory is ignored, so `fits` has the same effect as `most`. To take memory into
    account, use `antiphon_services.stage.memory_plan.planned_limit`. Raises `InvalidArgument` if
    the configured value is greater than `most`.
    """
    if not isinstance(config.context_limit, int):
        return most
    if config.context_limit > most:
        raise InvalidArgument(
            f"{role}: context_limit {config.context_limit} exceeds the checkpoint's maximum of "
            f"{most}; reduce it",
            field="context_limit",
        )
    return config.context_limit or most
