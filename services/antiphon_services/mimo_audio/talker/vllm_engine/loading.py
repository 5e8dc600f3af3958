"""Starts vLLM for the layers of a checkpoint.

Only import this module after the environment of vLLM has been prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from vllm import AsyncEngineArgs

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import CONFIG_FILE
from antiphon.pipelines.mimo_audio import TALKER
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.mimo_audio.talker.draws import PositionDraws
from antiphon_services.mimo_audio.talker.group_encoder import GroupEncoder
from antiphon_services.mimo_audio.talker.vllm_engine.architectures import GROUPED
from antiphon_services.mimo_audio.talker.vllm_engine.decoder import PagedSpeechTextModel
from antiphon_services.mimo_audio.talker.vllm_engine.engine import VllmSpeechTextEngine
from antiphon_services.vllm.arguments import (
    CPU_CACHE_BYTES,
    Tap,
    TextShape,
    engine_arguments,
)
from antiphon_services.vllm.launch import launch
from antiphon_services.vllm.media import MediaLimits
from antiphon_services.vllm.row_receiver import RowAddress

OWN_ARGUMENTS: Mapping[str, Any] = {"skip_mm_profiling": True}
"""The stage computes the rows itself, so vLLM has no encoder to profile."""
CACHE = "kv_cache_memory_bytes"


def start_engine(
    model_dir: Path,
    config: StageConfig,
    layers: Qwen2Config,
    encoder: GroupEncoder,
    draws: PositionDraws,
    settings: Mapping[str, Any],
) -> VllmSpeechTextEngine:
    """Start vLLM and return the engine. `settings` contains arguments of `SpeechTextEngine`.

    Raises `FailedPrecondition` if vLLM does not support the head size, and `InvalidArgument` if
    vLLM rejects an argument or its memory is too small for all slots. Errors that occur while vLLM
    starts are raised as well.
    """
    hidden, heads = layers.hidden_size, layers.num_attention_heads
    if layers.head_dim * heads != hidden:
        raise FailedPrecondition(
            f"{model_dir / CONFIG_FILE}: head_dim is {layers.head_dim}, but vLLM uses "
            f"hidden_size / num_attention_heads, which is {hidden / heads:g}; use the engine "
            "torch, which supports any head_dim"
        )
    limit: int = settings["context_limit"]
    shape = TextShape(
        "",
        layers=layers.num_hidden_layers,
        key_value_heads=layers.num_key_value_heads or heads,
        head_dim=layers.head_dim,
        hidden=hidden,
    )
    # vLLM needs one more position for the token that it samples after the last position.
    positions = limit + 1
    overrides = {"max_position_embeddings": max(positions, layers.max_position_embeddings)}
    given = {**OWN_ARGUMENTS, **config.engine_args}

    def arguments(rows: RowAddress) -> AsyncEngineArgs:
        made = engine_arguments(
            model_dir,
            msgspec.structs.replace(config, engine_args=given),
            shape,
            context_limit=positions,
            media=MediaLimits(audio=positions, image=0, video=0),
            overrides=overrides,
            tap=Tap(GROUPED, rows),
        )
        if config.device == "cpu" and CACHE not in given:
            one = made.kv_cache_memory_bytes - CPU_CACHE_BYTES
            made.kv_cache_memory_bytes += one * (config.slots - 1)
        return made

    vllm = launch(TALKER, config, arguments, takes_schemas=False)
    held = vllm.host.cache_positions
    if held < config.slots * positions:
        vllm.close()
        # Sessions keep their memory between steps, so none of them could continue if it were full.
        raise InvalidArgument(
            f"slots: vLLM's memory has room for {held} positions, but {config.slots} slots of "
            f"{positions} positions need more; reduce slots or context_limit, or increase "
            "engine_args.gpu_memory_utilization",
            field="slots",
        )
    model = PagedSpeechTextModel(
        encoder,
        draws,
        vllm.host,
        vllm.mailbox,
        empty_id=settings["prompts"].tokenizer.ids.group,
        slots=config.slots,
    )
    return VllmSpeechTextEngine(model, host=vllm.host, close_vllm=vllm.close, **settings)
