"""Starts vLLM for a checkpoint's thinker. The environment must be prepared before this module is
imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon_services.stage.engines import VLLM
from antiphon_services.stage.preparation import Preparations
from antiphon_services.thinker.intake import PromptIntake
from antiphon_services.thinker.loading import VISION_TOWER, first_picture, thinker_facts, with_media
from antiphon_services.thinker.vllm_engine.engine import VllmThinkerEngine
from antiphon_services.thinker.vllm_engine.prompt_check import PromptCheck
from antiphon_services.thinker.warm_up import warm_up
from antiphon_services.vllm.arguments import Tap, TextShape, engine_arguments
from antiphon_services.vllm.launch import launch
from antiphon_services.vllm.media import MediaLimits, media_limits
from antiphon_services.vllm.row_receiver import RowAddress


@dataclass(frozen=True, slots=True)
class VllmCheckpoint:
    """What vLLM needs to know about a checkpoint: the `tapped` architecture, the sizes, and
    `overrides` for the configuration.
    """

    tapped: str
    shape: TextShape
    vocabulary: int
    overrides: Mapping[str, Any]


def load_vllm(
    role: str,
    model_dir: Path,
    config: StageConfig,
    intake: PromptIntake,
    checkpoint: VllmCheckpoint,
    settings: object,
) -> LoadedStage:
    """Start and warm up the stage. `intake` must not have a vision front end yet.

    `settings` are those of the family's processor in transformers. Raises the same errors as
    `load_engine`, and `FailedPrecondition` if the warm-up prompt fails.
    """
    # All layers must be in one process, because of the tap.
    whole = config.engine_args.get("pipeline_parallel_size", 1) == 1
    sees = whole and Weights(model_dir).has(VISION_TOWER)
    media = media_limits(config.engine_args, hears=whole, sees=sees)
    prompts = with_media(model_dir, intake.prompts, settings, media)
    intake = dataclasses.replace(intake, prompts=prompts)
    engine = load_engine(role, model_dir, config, intake, checkpoint, media=media, tapped=whole)
    try:
        rate_hz = prompts.audio.sample_rate_hz if media.audio else None
        warm_up(engine, rate_hz, first_picture(media))
    except BaseException:
        engine.close()
        raise
    return LoadedStage(engine, thinker_facts(role, model_dir, prompts, VLLM, media))


def load_engine(
    role: str,
    model_dir: Path,
    config: StageConfig,
    intake: PromptIntake,
    checkpoint: VllmCheckpoint,
    *,
    media: MediaLimits,
    tapped: bool,
) -> VllmThinkerEngine:
    """Return a running engine with the limits in `media`. If `tapped` is true, it provides hidden
    rows.

    Raises `InvalidArgument` if vLLM doesn't accept an argument. Any error that vLLM raises during
    startup is passed on.
    """

    audio, limit = intake.prompts.audio, intake.prompts.context_limit
    windows = audio.most_windows(media.audio, limit) if media.audio else 0

    def arguments(rows: RowAddress) -> AsyncEngineArgs:
        return engine_arguments(
            model_dir,
            config,
            checkpoint.shape,
            context_limit=limit,
            media=dataclasses.replace(media, audio=windows),
            overrides=checkpoint.overrides,
            tap=Tap(checkpoint.tapped, rows) if tapped else None,
        )

    vllm = launch(role, config, arguments, takes_schemas=True)
    check = PromptCheck(intake.prompts.special, checkpoint.vocabulary, hears=media.audio > 0)
    return VllmThinkerEngine(
        intake,
        check,
        vllm.host,
        vllm.mailbox,
        close=vllm.close,
        preparations=Preparations.of(config),
    )
