"""Finds a stage's code, which consists of the functions `load` and `memory` in the module `load` of
the family's package for the role.

The module, and with it torch, is only imported when the stage is loaded, after the port has been
bound.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument, NotFound
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import LoadedStage

if TYPE_CHECKING:
    from antiphon_services.stage.memory_plan import StageMemory


def load_stage(pipeline: Pipeline, role: str, model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load a stage's model. The directory is resolved first, because the model is named after it,
    and `.` has no name.

    Raises `NotFound` if the family doesn't have any code for this stage, and `InvalidArgument` if
    the dtype is not supported.
    """
    only = pipeline.stage(role).dtype
    if only and config.dtype not in (None, only):
        raise InvalidArgument(
            f"dtype: {role} only supports {only}; set dtype to {only}", field="dtype"
        )
    _prepare_torch(config)
    loaded = cast("LoadedStage", _load_module(pipeline, role).load(model_dir.resolve(), config))
    from antiphon_services.stage.device_loss import device_is_lost

    return replace(loaded, is_fatal=device_is_lost)


def stage_memory(
    pipeline: Pipeline, role: str, model_dir: Path, config: StageConfig
) -> StageMemory | None:
    """Return the memory that a stage would need, or None if its family doesn't declare it. This
    only reads the configuration and the headers of the weights.

    Raises `NotFound` if the family doesn't have any code for the stage, and any error of the
    family's `memory` function.
    """
    _silence_transformers()
    describe = getattr(_load_module(pipeline, role), "memory", None)
    return None if describe is None else cast("StageMemory", describe(model_dir, config))


def _load_module(pipeline: Pipeline, role: str) -> ModuleType:
    """Import a stage's `load` module. Raises `NotFound` if it doesn't exist."""
    name = f"{pipeline.package}.{role}.load"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise NotFound(f"the pipeline {pipeline.name} has no module {name}") from error


def _prepare_torch(config: StageConfig) -> None:
    """Apply process-wide settings before the first model is loaded.

    The number of threads is limited, so that the stages on a host can share its cores.
    """
    import torch

    from antiphon_services.lm.attention_calls import disable_cudnn_attention

    _silence_transformers()
    disable_cudnn_attention()
    if config.threads:
        torch.set_num_threads(config.threads)


def _silence_transformers() -> None:
    """Make transformers log only errors. This doesn't import transformers, because some stages
    don't use it.

    transformers reads the environment variable when it is imported.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
