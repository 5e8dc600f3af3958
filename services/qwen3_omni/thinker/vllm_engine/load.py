"""Starts vLLM for a checkpoint's thinker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen3_omni import THINKER
from services.qwen3_omni.thinker.vllm_engine.architectures import TAPPED_THINKER
from services.qwen3_omni.thinker.vllm_engine.checkpoint import overrides, text_shape
from services.qwen3_omni.thinker.vllm_engine.engine import VllmThinkerEngine
from services.qwen3_omni.thinker.vllm_engine.prompt_check import PromptCheck
from services.thinker.intake import PromptIntake
from services.vllm.arguments import Tap, engine_arguments
from services.vllm.launch import launch
from services.vllm.media import MediaLimits
from services.vllm.row_receiver import RowAddress


def load_engine(
    model_dir: Path,
    checkpoint: Mapping[str, Any],
    config: StageConfig,
    intake: PromptIntake,
    *,
    media: MediaLimits,
    tapped: bool,
) -> VllmThinkerEngine:
    """The engine, serving. `checkpoint` is the `config.json`.

    It takes what `media` says, and has the hidden rows of prompts if it is `tapped`.
    Raises `InvalidArgument` for arguments that vLLM does not take, `FailedPrecondition`
    for a checkpoint whose tap it cannot place, and what vLLM's start raises.
    """
    thinker = checkpoint["thinker_config"]["text_config"]
    layer = checkpoint["talker_config"]["accept_hidden_layer"]
    if not 0 <= layer < thinker["num_hidden_layers"]:
        raise FailedPrecondition(
            f"the talker reads layer {layer}; vLLM can tap 0 to {thinker['num_hidden_layers'] - 1}"
        )

    def arguments(rows: RowAddress) -> AsyncEngineArgs:
        return engine_arguments(
            model_dir,
            config,
            text_shape(checkpoint),
            context_limit=intake.prompts.context_limit,
            media=media,
            overrides=overrides(checkpoint),
            tap=Tap(TAPPED_THINKER, rows) if tapped else None,
        )

    vllm = launch(THINKER, config, arguments)
    check = PromptCheck(intake.prompts.special, thinker["vocab_size"], hears=media.audio > 0)
    return VllmThinkerEngine(intake, check, vllm.host, vllm.mailbox, close=vllm.close)
