"""Loads stages in this process. No other module in this tool imports services.

The stage, its reference and the next stage use the device one after another. The comparison needs
direct access to their engines, which wouldn't be possible if the stages ran as separate processes.
"""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import read_config
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import LoadedStage
from antiphon_services.mimo_audio.talker.tokenizer import PromptTokenizer
from antiphon_services.stage.loading import load_stage


def load(pipeline: Pipeline, role: str, model: Path, config: StageConfig) -> LoadedStage:
    """Load and warm up a stage. Raises `AntiphonError` with a remedy."""
    return load_stage(pipeline, role, model, config)


def frames_id(model: Path) -> int:
    """Return the token that represents a group of frames in MiMo-Audio's text."""
    tokenizer, _ = PromptTokenizer.load(model, int(read_config(model)["vocab_size"]))
    return tokenizer.ids.group


def give_memory_back() -> None:
    """Free the device memory of models that are no longer used."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
