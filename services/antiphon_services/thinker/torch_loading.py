"""Loads the torch engine for the thinker of any family."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon.transport.device_edge import ToHost
from antiphon_services.lm.graphs import Bucketing, graphs_of
from antiphon_services.lm.kernels import kernels_of
from antiphon_services.lm.memory import module_bytes, say_memory
from antiphon_services.stage.budgets import text_rows
from antiphon_services.stage.engines import TORCH
from antiphon_services.stage.precision import BFLOAT16, compute_dtype
from antiphon_services.stage.preparation import SHORT_TEXT_BYTES
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_services.thinker.intake import PromptIntake, ThinkerPreparations
from antiphon_services.thinker.loading import first_picture, thinker_facts, with_media
from antiphon_services.thinker.model import ThinkerModel
from antiphon_services.thinker.towers import TowerPlan
from antiphon_services.thinker.warm_up import warm_up
from antiphon_services.vllm.media import MediaLimits

TOWERS = "audio_tower", "visual", "audio", "linear_proj_audio", "vision", "linear_proj"


@dataclass(frozen=True, slots=True)
class TorchThinker:
    """Hugging Face's module for a thinker with this `config`, and a description of what its talker
    reads.

    `tapped_layer`, `towers`, `with_words` and `routes_media` have the same meaning as in
    `ThinkerModel`.
    `processor` contains the settings of the family's processor in transformers if the thinker
    supports vision. The tensor names in the checkpoint begin with `prefix`. The children in
    `unseen` are only loaded if images or videos are supported. `ignored` contains the names of
    further tensors in the checkpoint that aren't loaded.
    """

    module_class: type[torch.nn.Module]
    config: Any
    tapped_layer: int
    towers: TowerPlan
    with_words: bool = False
    routes_media: bool = False
    processor: object = None
    prefix: str = "thinker."
    unseen: tuple[str, ...] = ("visual",)
    ignored: tuple[str, ...] = ()


def load_torch(
    role: str,
    model_dir: Path,
    config: StageConfig,
    intake: PromptIntake,
    thinker: TorchThinker,
    *,
    media: MediaLimits,
    bucketing: Bucketing | None,
    prefill_rows: int | None,
) -> LoadedStage:
    """Load and warm up the stage, with the limits in `media`.

    If `intake` doesn't have a vision front end yet, the checkpoint's own is loaded.

    Raises `FailedPrecondition` if weights are missing or the warm-up prompt fails, and
    `InvalidArgument` if a GPU doesn't have enough memory for all slots at full length.
    """
    to_host = ToHost.of(config)
    prompts = with_media(model_dir, intake.prompts, thinker.processor, media, cuts=True)
    intake = dataclasses.replace(intake, prompts=prompts)
    module = load_submodule(
        thinker.module_class,
        thinker.config,
        thinker.prefix,
        Weights(model_dir),
        dtype=compute_dtype(role, config, on_gpu=BFLOAT16),
        device=torch.device(config.device),
        skip=() if media.sees else thinker.unseen,
        ignored=thinker.ignored,
    )
    children = module.named_children()
    towers = sum(module_bytes(child) for name, child in children if name in TOWERS)
    parts = {"weights": module_bytes(module) - towers, "encoders": towers}
    model = ThinkerModel(
        module,
        special=prompts.special,
        towers=thinker.towers,
        tapped_layer=thinker.tapped_layer,
        with_words=thinker.with_words,
        routes_media=thinker.routes_media,
        slots=config.slots,
        context_limit=prompts.context_limit,
        bucketing=bucketing or graphs_of(config),
        kernels=kernels_of(config),
    )
    engine = ThinkerEngine(
        model,
        intake,
        prefill_rows=prefill_rows or text_rows(config),
        preparations=ThinkerPreparations.of(config, SHORT_TEXT_BYTES),
        to_host=to_host,
    )
    warm_up(engine, prompts.audio.sample_rate_hz, first_picture(media))
    engine.forget()
    say_memory(role, model.memory, parts, there=model.cache.bytes)
    return LoadedStage(engine, thinker_facts(role, model_dir, prompts, TORCH, media), to_host)
