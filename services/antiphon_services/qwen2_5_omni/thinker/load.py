"""Loads the thinker of a Qwen2.5-Omni checkpoint."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import numpy as np
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniThinkerForConditionalGeneration
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessorKwargs

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config
from antiphon.pipelines.qwen2_5_omni import THINKER, PlaceholderIds
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.qwen2_5_omni.thinker.audio import audio_tower
from antiphon_services.qwen2_5_omni.thinker.fields import PARTS, TEXT, VLLM_PARTS
from antiphon_services.qwen2_5_omni.thinker.towers import Omni25Towers
from antiphon_services.qwen2_5_omni.thinker.vllm_engine.architectures import MODELS
from antiphon_services.stage.config_fields import check_fields, check_window
from antiphon_services.stage.engines import TORCH, VLLM, check_device, choose_engine
from antiphon_services.stage.hugging_face import load_config
from antiphon_services.stage.memory_plan import (
    StageMemory,
    StoredPart,
    decoder_memory,
    planned_limit,
)
from antiphon_services.text.chat import load_chat_tokenizer
from antiphon_services.text.detokenizer import Vocabulary
from antiphon_services.thinker.audio import AudioFrontEnd
from antiphon_services.thinker.intake import PromptIntake
from antiphon_services.thinker.loading import VISION_TOWER, VLLM_READS_IT, load_extractor
from antiphon_services.thinker.prompt import Ids, PromptFactory
from antiphon_services.thinker.thinker_segment import Positions
from antiphon_services.thinker.torch_loading import TorchThinker, load_torch
from antiphon_services.vllm import environment
from antiphon_services.vllm.media import MediaLimits

_log = logging.getLogger(__name__)


def memory(model_dir: Path, config: StageConfig, engine: str = "") -> StageMemory:
    """Return the memory that the thinker needs on an engine. If `engine` is empty, it is the engine
    that `load` would choose.

    Raises `InvalidArgument` if the engine is not supported, and `FailedPrecondition` if the
    checkpoint can't be used.
    """
    chosen = engine or choose_engine(THINKER, config, vllm_runs=environment.is_installed)
    skip = () if chosen == VLLM or _media(model_dir).sees else (VISION_TOWER,)
    text = _load_config(model_dir).thinker_config.text_config
    stored = StoredPart(Weights(model_dir), "thinker.", skip)
    return decoder_memory(THINKER, config, text, stored, row=text.hidden_size, engine=chosen)


def load(
    model_dir: Path,
    config: StageConfig,
    bucketing: Bucketing | None = None,
    *,
    prefill_rows: int | None = None,
) -> LoadedStage:
    """Load a checkpoint's thinker and warm it up.

    `prefill_rows` only applies to the torch engine. It is the maximum number of prompt rows in a
    step that also decodes segments, and `text_rows` determines it if it is None. If `bucketing` is
    None, `torch.graphs` determines it. The torch engine supports images if Pillow is installed, and
    also videos if OpenCV is installed.

    Raises `InvalidArgument` if the engine or the context limit is not supported, and
    `FailedPrecondition` if the checkpoint is incomplete or has unsupported fields.
    """
    name = choose_engine(THINKER, config, vllm_runs=environment.is_installed)
    _log.info("selected engine: %s (configured: %s)", name, config.engine)
    parts = VLLM_PARTS if name == VLLM else PARTS
    check_fields(model_dir / CONFIG_FILE, read_config(model_dir), parts)
    if name == VLLM:
        environment.prepare(config, MODELS)
        from antiphon_services.qwen2_5_omni.thinker.vllm_engine.checkpoint import vllm_checkpoint
        from antiphon_services.thinker.vllm_engine.loading import load_vllm

        intake = load_intake(model_dir, config, VLLM)
        checkpoint = vllm_checkpoint(read_config(model_dir))
        return load_vllm(THINKER, model_dir, config, intake, checkpoint, Qwen2_5OmniProcessorKwargs)
    check_device(config)
    Weights(model_dir).require_unquantized(THINKER, "thinker.", VLLM_READS_IT)
    intake = load_intake(model_dir, config)
    whole = _load_config(model_dir).thinker_config
    return load_torch(
        THINKER,
        model_dir,
        config,
        intake,
        TorchThinker(
            Qwen2_5OmniThinkerForConditionalGeneration,
            whole,
            tapped_layer=whole.text_config.num_hidden_layers,
            towers=Omni25Towers(),
            with_words=True,
            processor=Qwen2_5OmniProcessorKwargs,
        ),
        media=_media(model_dir),
        bucketing=bucketing,
        prefill_rows=prefill_rows,
    )


def load_intake(model_dir: Path, config: StageConfig, engine: str = TORCH) -> PromptIntake:
    """Load a checkpoint's chat template, tokenizer and audio front end for use with an engine."""
    whole = _load_config(model_dir).thinker_config
    text = whole.text_config
    limit = planned_limit(memory(model_dir, config, engine))
    check_window(model_dir / CONFIG_FILE, TEXT.path, text, limit, limited=THINKER)
    extractor = load_extractor(model_dir)
    chat = load_chat_tokenizer(model_dir)
    prompts = PromptFactory(
        chat=chat,
        # Hugging Face's processor truncates longer recordings.
        audio=AudioFrontEnd(
            extractor,
            audio_tower(whole.audio_config.n_window),
            max_audio_s=extractor.n_samples / extractor.sampling_rate,
            known_bytes=config.memory.kept_recording_bytes,
        ),
        special=PlaceholderIds.from_config(read_config(model_dir)),
        context_limit=limit,
    )
    if chat.tokenizer.eos_token_id is None:
        raise FailedPrecondition(f"{model_dir}: the tokenizer has no eos_token; {REMEDY}")
    return PromptIntake(
        prompts,
        Vocabulary(chat.tokenizer),
        stop_id=chat.tokenizer.eos_token_id,
        row_positions=_all_positions,
        every_row=True,
    )


def _load_config(model_dir: Path) -> Any:
    return load_config(Qwen2_5OmniConfig, model_dir, "thinker_config")


def _all_positions(ids: Ids) -> Positions:
    """Return all positions, because the talker reads a row for each of them."""
    return np.arange(len(ids))


def _media(model_dir: Path) -> MediaLimits:
    """Return the media that the torch engine supports, depending on the installed packages."""
    limits = MediaLimits()
    sees = Weights(model_dir).has(VISION_TOWER) and importlib.util.find_spec("PIL") is not None
    watches = sees and importlib.util.find_spec("cv2") is not None
    return MediaLimits(limits.audio, limits.image * sees, limits.video * watches)
