"""A stage whose weights are generated on its device: `python -m benchmarks.gpu.stage ROLE --help`.

It only reads the files of the checkpoint that are not weights, and the talker's word embeddings.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import read_config
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server.main import main
from antiphon_services.lm.reproducible import ask_for_equal_digits
from antiphon_services.stage.loading import load_stage
from benchmarks.gpu.weights import VOCODER_GAIN, end_never, random_module

# The modules that load modules of the checkpoint, by role.
LOADERS = {
    "thinker": "antiphon_services.thinker.torch_loading",
    "talker": "antiphon_services.qwen3_omni.talker.load",
    "code2wav": "antiphon_services.qwen3_omni.code2wav.load",
}


def load_random(pipeline: Pipeline, role: str, model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load a stage like `load_stage`, but with random weights."""

    def made(
        module_class: type[torch.nn.Module],
        part: Any,
        prefix: str,
        weights: Weights,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        skip: tuple[str, ...] = (),
        ignored: tuple[str, ...] = (),
    ) -> torch.nn.Module:
        if role == "code2wav":
            return random_module(module_class, part, dtype=dtype, device=device, gain=VOCODER_GAIN)
        module = random_module(module_class, part, dtype=dtype, device=device, skip=skip)
        whole = read_config(model_dir)
        talks = role == "talker"
        end_never(module, part.codec_eos_token_id if talks else whole["im_end_token_id"])
        return module

    loader: Any = importlib.import_module(LOADERS[role])
    # Only this load is affected. Other loads in this process still read their files.
    with patch.object(loader, "load_submodule", made):
        return load_stage(pipeline, role, model_dir, config)


if __name__ == "__main__":
    ask_for_equal_digits()
    sys.exit(main(load_random, prog="python -m benchmarks.gpu.stage"))
