"""Loads the thinker of a Qwen3-Omni checkpoint."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    WhisperFeatureExtractor,
)

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, read_json, reading
from antiphon.pipelines.generation_config import default_sampling
from antiphon.pipelines.qwen3_omni import THINKER, SpecialIds
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage, StageFacts
from antiphon.sampling import Sampling
from antiphon.transport.device_edge import ToHost
from services.engines import VLLM, check_device, choose_engine, context_limit
from services.hugging_face import load_config
from services.lm.graphs import Bucketing, graphs_of
from services.qwen3_omni.thinker.audio import AudioFrontEnd
from services.qwen3_omni.thinker.engine import PREFILL_ROWS, ThinkerEngine
from services.qwen3_omni.thinker.intake import PromptIntake
from services.qwen3_omni.thinker.model import ThinkerModel
from services.qwen3_omni.thinker.prompt import PromptFactory
from services.qwen3_omni.thinker.vllm_engine.architectures import MODELS
from services.qwen3_omni.thinker.warm_up import warm_up
from services.text.chat import load_chat_tokenizer
from services.text.detokenizer import Vocabulary
from services.vllm import environment
from services.vllm.media import MediaLimits, media_limits

MAX_INPUT_AUDIO_S = 1800.0
PREPROCESSOR_FILE = "preprocessor_config.json"
VISION_TOWER = "thinker.visual."
DEFAULT_SAMPLING = Sampling(
    temperature=0.0, top_k=50, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1024
)
"""What Hugging Face's `generate` does unless told otherwise: greedy, 1024 tokens."""


_log = logging.getLogger(__name__)


def load(
    model_dir: Path,
    config: StageConfig,
    bucketing: Bucketing | None = None,
    *,
    prefill_rows: int = PREFILL_ROWS,
) -> LoadedStage:
    """The thinker of a checkpoint directory, warmed up.

    `prefill_rows` is the most prompt rows that share one step with those that decode, and
    `bucketing` what `config.graphs` chooses if None, both in the torch engine. Raises
    `InvalidArgument` for an engine or a context limit that it does not have,
    `FailedPrecondition` for a checkpoint that is not complete.
    """
    name = choose_engine(THINKER, config, vllm_runs=environment.is_installed)
    _log.info("the engine is %s (configured: %s)", name, config.engine)
    if name == VLLM:
        environment.prepare(config, MODELS)
    else:
        check_device(config)
    intake = load_intake(model_dir, config)
    prompts = intake.prompts
    if name == VLLM:
        from services.qwen3_omni.thinker.vllm_engine.load import load_engine

        # The tap needs all layers in one process.
        whole = config.engine_args.get("pipeline_parallel_size", 1) == 1
        media = media_limits(
            config.engine_args, hears=whole, sees=whole and Weights(model_dir).has(VISION_TOWER)
        )
        checkpoint = read_config(model_dir)
        intake = dataclasses.replace(intake, prompts=_with_vision(model_dir, prompts, media))
        detached = load_engine(model_dir, checkpoint, config, intake, media=media, tapped=whole)
        try:
            rate_hz = prompts.audio.sample_rate_hz if media.audio else None
            warm_up(detached, rate_hz, _first_picture(media))
        except BaseException:
            detached.close()
            raise
        return LoadedStage(detached, _facts(model_dir, prompts, name, media))
    to_host = ToHost.of(config)
    engine = _load_torch(
        model_dir, config, intake, prefill_rows, to_host, bucketing or graphs_of(config)
    )
    warm_up(engine, prompts.audio.sample_rate_hz)
    engine.forget()
    return LoadedStage(
        engine, _facts(model_dir, prompts, name, MediaLimits(image=0, video=0)), to_host
    )


def _load_torch(
    model_dir: Path,
    config: StageConfig,
    intake: PromptIntake,
    prefill_rows: int,
    to_host: ToHost,
    bucketing: Bucketing | None,
) -> ThinkerEngine:
    """The engine that runs in this process."""
    whole = load_config(Qwen3OmniMoeConfig, model_dir, "thinker_config", "talker_config")
    layers = whole.thinker_config.text_config.num_hidden_layers
    tapped = whole.talker_config.accept_hidden_layer
    if not 0 <= tapped <= layers:
        raise FailedPrecondition(
            f"{model_dir / CONFIG_FILE}: talker_config.accept_hidden_layer is {tapped}; the "
            f"thinker has layers up to {layers}; {REMEDY}"
        )
    module = load_submodule(
        Qwen3OmniMoeThinkerForConditionalGeneration,
        whole.thinker_config,
        "thinker.",
        Weights(model_dir),
        dtype=getattr(torch, config.dtype),
        device=torch.device(config.device),
        skip=("visual",),
    )
    model = ThinkerModel(
        module,
        tapped_layer=tapped,
        slots=config.slots,
        context_limit=intake.prompts.context_limit,
        bucketing=bucketing,
    )
    return ThinkerEngine(model, intake, prefill_rows=prefill_rows, to_host=to_host)


def load_intake(model_dir: Path, config: StageConfig) -> PromptIntake:
    """Chat template, tokeniser and audio front end of the directory."""
    whole = load_config(Qwen3OmniMoeConfig, model_dir, "thinker_config", "talker_config")
    extractor = _load_extractor(model_dir)
    prompts = PromptFactory(
        chat=load_chat_tokenizer(model_dir),
        audio=AudioFrontEnd(
            extractor,
            n_window=whole.thinker_config.audio_config.n_window,
            max_audio_s=MAX_INPUT_AUDIO_S,
        ),
        special=SpecialIds.from_config(read_config(model_dir)),
        context_limit=context_limit(
            THINKER, config, whole.thinker_config.text_config.max_position_embeddings
        ),
    )
    return PromptIntake(prompts, Vocabulary(prompts.chat.tokenizer))


def _load_extractor(model_dir: Path) -> WhisperFeatureExtractor:
    """The audio front end's settings. Raises `FailedPrecondition`."""
    path = model_dir / PREPROCESSOR_FILE
    settings = read_json(path)
    with reading(path):
        made: Any = WhisperFeatureExtractor.from_dict(settings)
        return cast(WhisperFeatureExtractor, made)


def _with_vision(model_dir: Path, prompts: PromptFactory, media: MediaLimits) -> PromptFactory:
    """The factory with the checkpoint's eyes, if anything may be seen."""
    if not media.sees:
        return prompts
    # Pillow and OpenCV come with vLLM, and nothing else here needs them.
    from services.qwen3_omni.thinker.vision_loading import load_vision

    vision = load_vision(model_dir, max_images=media.image, max_videos=media.video)
    return dataclasses.replace(prompts, vision=vision)


def _first_picture(media: MediaLimits) -> bytes:
    """The picture that warms the engine up; empty if it sees none."""
    if not media.image:
        return b""
    from services.qwen3_omni.thinker.vision_loading import blank_picture

    return blank_picture()


def _facts(model_dir: Path, prompts: PromptFactory, engine: str, media: MediaLimits) -> StageFacts:
    """What `Describe` says of this thinker."""
    kinds = ("text", *(name for name, most in dataclasses.asdict(media).items() if most))
    return StageFacts(
        model=model_dir.resolve().name,
        checkpoint_fingerprint=fingerprint(model_dir),
        engine=engine,
        default_sampling=default_sampling(model_dir, THINKER, DEFAULT_SAMPLING),
        context_limit=prompts.context_limit,
        input_kinds=kinds,
        input_sample_rate_hz=prompts.audio.sample_rate_hz,
        max_input_audio_s=MAX_INPUT_AUDIO_S,
        max_input_images=media.image,
        max_input_videos=media.video,
        max_input_text_bytes=prompts.max_text_bytes,
    )
