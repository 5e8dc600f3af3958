"""Loads the thinker of a Qwen3-Omni checkpoint."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config
from antiphon.pipelines.qwen3_omni import THINKER, SpecialIds, talker_row_positions
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.qwen3_omni.config import OmniConfig
from antiphon_services.qwen3_omni.thinker.audio import audio_tower
from antiphon_services.qwen3_omni.thinker.fields import PARTS, VLLM_PARTS
from antiphon_services.qwen3_omni.thinker.module import ThinkerModule
from antiphon_services.qwen3_omni.thinker.prompt import need_user
from antiphon_services.qwen3_omni.thinker.towers import Omni3Towers
from antiphon_services.qwen3_omni.thinker.vllm_engine.architectures import MODELS
from antiphon_services.stage.config_fields import check_fields
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
from antiphon_services.thinker.loading import (
    DEFAULT_SAMPLING as DEFAULT_SAMPLING,
)
from antiphon_services.thinker.loading import VISION_TOWER, VLLM_READS_IT, load_extractor
from antiphon_services.thinker.prompt import PromptFactory
from antiphon_services.thinker.torch_loading import TorchThinker, load_torch
from antiphon_services.vllm import environment
from antiphon_services.vllm.media import MediaLimits

MAX_INPUT_AUDIO_S = 1800.0
TOKENIZER = "Qwen2Tokenizer"
"""The class that transformers registers for this family."""

_log = logging.getLogger(__name__)


def memory(model_dir: Path, config: StageConfig, engine: str = "") -> StageMemory:
    """Return the memory that the thinker needs on an engine. If `engine` is empty, it is the engine
    that `load` would choose.

    Raises `InvalidArgument` if the engine is not supported, and `FailedPrecondition` if the
    checkpoint can't be used.
    """
    chosen = engine or choose_engine(THINKER, config, vllm_runs=environment.is_installed)
    skip = () if chosen == VLLM else (VISION_TOWER,)
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
    None, `torch.graphs` determines it. Raises `InvalidArgument` if the engine or the context limit
    is not supported, and `FailedPrecondition` if the checkpoint is incomplete or has unsupported
    fields.
    """
    name = choose_engine(THINKER, config, vllm_runs=environment.is_installed)
    _log.info("selected engine: %s (configured: %s)", name, config.engine)
    if name == VLLM:
        environment.prepare(config, MODELS)
    else:
        check_device(config)
        Weights(model_dir).require_unquantized(THINKER, "thinker.", VLLM_READS_IT)
    parts = VLLM_PARTS if name == VLLM else PARTS
    check_fields(model_dir / CONFIG_FILE, read_config(model_dir), parts)
    intake = load_intake(model_dir, config, name)
    if name == VLLM:
        # This import loads transformers' modelling code, as vLLM does.
        from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
            Qwen3OmniMoeProcessorKwargs,
        )

        from antiphon_services.qwen3_omni.thinker.vllm_engine.checkpoint import vllm_checkpoint
        from antiphon_services.thinker.vllm_engine.loading import load_vllm

        checkpoint = vllm_checkpoint(read_config(model_dir))
        return load_vllm(
            THINKER, model_dir, config, intake, checkpoint, Qwen3OmniMoeProcessorKwargs
        )
    whole = _load_config(model_dir)
    layers = whole.thinker_config.text_config.num_hidden_layers
    tapped = whole.talker_config.accept_hidden_layer if whole.enable_audio_output else 0
    if not 0 <= tapped <= layers:
        raise FailedPrecondition(
            f"{model_dir / CONFIG_FILE}: talker_config.accept_hidden_layer is {tapped}, but the "
            f"thinker only has layers up to {layers}; {REMEDY}"
        )
    return load_torch(
        THINKER,
        model_dir,
        config,
        intake,
        TorchThinker(
            ThinkerModule,
            whole.thinker_config,
            tapped_layer=tapped,
            towers=Omni3Towers(),
        ),
        media=MediaLimits(image=0, video=0),
        bucketing=bucketing,
        prefill_rows=prefill_rows,
    )


def _load_config(model_dir: Path) -> Any:
    """Return the configuration. It must contain a section for the talker unless audio output is
    disabled.
    """
    silent = read_config(model_dir).get("enable_audio_output") is False
    parts = ("thinker_config",) if silent else ("thinker_config", "talker_config")
    return load_config(OmniConfig, model_dir, *parts)


def load_intake(model_dir: Path, config: StageConfig, engine: str = TORCH) -> PromptIntake:
    """Load a checkpoint's chat template, tokenizer and audio front end for use with an engine."""
    whole = _load_config(model_dir)
    extractor = load_extractor(model_dir)
    fields = read_config(model_dir)
    # A checkpoint without a talker doesn't have any talker IDs, but then they aren't used either.
    special = SpecialIds.from_config(fields if whole.enable_audio_output else whole.to_dict())
    ears = whole.thinker_config.audio_config
    prompts = PromptFactory(
        chat=load_chat_tokenizer(model_dir, registered=TOKENIZER),
        audio=AudioFrontEnd(
            extractor,
            audio_tower(ears.n_window, ears.n_window_infer),
            max_audio_s=MAX_INPUT_AUDIO_S,
            known_bytes=config.memory.kept_recording_bytes,
        ),
        special=special,
        context_limit=planned_limit(memory(model_dir, config, engine)),
        check_spoken=partial(need_user, special=special),
    )
    return PromptIntake(
        prompts,
        Vocabulary(prompts.chat.tokenizer),
        stop_id=special.im_end,
        row_positions=partial(talker_row_positions, special=special),
    )
