"""Finds a stage's code for a pipeline: `services.<role>.<pipeline name>.load`.

The import happens on the first load, after the port is bound: it brings torch in.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import cast

from antiphon.deployment.schema import StageConfig
from antiphon.errors import NotFound
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server.main import Load


def load_role(package: str) -> Load:
    """A loader for the stages in `package`, one module per pipeline."""

    def load(pipeline: Pipeline, model_dir: Path, config: StageConfig) -> LoadedStage:
        _prepare_torch(config)
        name = f"{package}.{pipeline.name}"
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise NotFound(f"{package} has no code for the pipeline {pipeline.name}") from error
        loaded = cast("LoadedStage", module.load(model_dir, config))
        from services.device_loss import device_is_lost

        return replace(loaded, is_fatal=device_is_lost)

    return load


def _prepare_torch(config: StageConfig) -> None:
    """Process-wide settings, before the first model.

    Threads are bounded so that stages on one host share its cores. In float32 the
    reference's digits are wanted, so convolutions must not round to TF32.
    """
    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    if config.threads:
        torch.set_num_threads(config.threads)
    if config.dtype == "float32":
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
