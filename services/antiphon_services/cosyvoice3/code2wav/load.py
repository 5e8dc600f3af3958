"""Loads the code2wav stage of a CosyVoice3 checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.cosyvoice3 import (
    AUDIO,
    CODE2WAV,
    CODES,
    FRAMES_PER_CODE,
    MEL_BINS,
    MODEL_FILE,
    MOST_CODES,
    SAMPLE_RATE_HZ,
    SPEAKER_WIDTH,
    VOICE,
)
from antiphon.pipelines.files import REMEDY, reading
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import InputChunk, LoadedStage, StageFacts
from antiphon.values.segment import FinishReason
from antiphon_services.cosyvoice3.code2wav.decoder import SpeechDecoder
from antiphon_services.cosyvoice3.code2wav.engine import Code2WavEngine
from antiphon_services.cosyvoice3.code2wav.fields import PARTS
from antiphon_services.cosyvoice3.code2wav.flow import MelFlow
from antiphon_services.cosyvoice3.code2wav.flow_module import FlowModule
from antiphon_services.cosyvoice3.code2wav.utterance_segment import CODE_ENTRIES
from antiphon_services.cosyvoice3.code2wav.vocoder import HarmonicVocoder
from antiphon_services.cosyvoice3.code2wav.vocoder_module import VocoderModule, fold_weight_norm
from antiphon_services.flow.block_cache import BlockPages
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import TORCH, context_limit, require_plain_torch
from antiphon_services.stage.hyperpyyaml import read_hyperpyyaml
from antiphon_services.stage.memory_plan import StageMemory, StoredPart, check_room
from antiphon_services.stage.precision import compute_dtype, dtype_name
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_services.vocoder.stage import NO_SAMPLING, warm_up_decoder

FLOW_FILE, VOCODER_FILE = "flow.pt", "hift.pt"
VOCODER_PREFIX = "generator."

# These buffers are part of the checkpoint, but they are computed instead of loaded.
STORED_BUFFERS = ("decoder.estimator.rotary_embed.inv_freq",)

WARM_UP_CODES = 8

log = logging.getLogger(__name__)


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the flow, the vocoder and the stream cache.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    stored = (
        StoredPart(Weights(model_dir, FLOW_FILE), skip=STORED_BUFFERS),
        StoredPart(Weights(model_dir, VOCODER_FILE), VOCODER_PREFIX),
    )
    return StageMemory(
        CODE2WAV,
        config,
        stored,
        dtype_name(CODE2WAV, config),
        shared=config.memory.flow_cache_bytes,
    )


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the flow and the vocoder.

    Raises `InvalidArgument` if a setting is not supported, and `FailedPrecondition` if the parts of
    the checkpoint do not match.
    """
    require_plain_torch(CODE2WAV, config)
    decoder = load_decoder(model_dir, config)
    limit = context_limit(CODE2WAV, config, MOST_CODES)
    engine = Code2WavEngine(decoder, context_limit=limit, slots=config.slots)
    voice = {
        "speaker": np.ones((1, SPEAKER_WIDTH), np.float32),
        "prompt_codes": np.zeros(0, np.int32),
        "prompt_mel": np.zeros((0, MEL_BINS), np.float32),
    }
    warm_up_decoder(
        engine,
        VocoderEdges(CODES, AUDIO),
        np.zeros((min(WARM_UP_CODES, limit), 1), np.uint16),
        InputChunk(VOICE, 0, voice, True, FinishReason.STOP),
        streams=True,
    )
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir),
        engine=TORCH,
        default_sampling=NO_SAMPLING,
        sample_rate_hz=SAMPLE_RATE_HZ,
        samples_per_frame=decoder.samples_per_code,
        code_groups=1,
        code_entries=CODE_ENTRIES,
        context_limit=limit,
    )
    return LoadedStage(engine, facts)


@torch.inference_mode()
def load_decoder(model_dir: Path, config: StageConfig) -> SpeechDecoder:
    """Load the flow and the vocoder without creating an engine.

    Raises `FailedPrecondition` if the parts of the checkpoint do not match.
    """
    path = model_dir / MODEL_FILE
    told = read_hyperpyyaml(path)
    check_fields(path, told, PARTS)
    flow_weights, vocoder_weights = Weights(model_dir, FLOW_FILE), Weights(model_dir, VOCODER_FILE)
    check_room(memory, model_dir, config)
    dtype, device = compute_dtype(CODE2WAV, config), torch.device(config.device)
    with reading(path):
        flow_config, vocoder_config = _object(told, path, "flow"), _object(told, path, "hift")
        flow_module = load_submodule(
            FlowModule,
            flow_config,
            "",
            flow_weights,
            dtype=dtype,
            device=device,
            ignored=STORED_BUFFERS,
        )
        vocoder_module = load_submodule(
            VocoderModule,
            vocoder_config,
            VOCODER_PREFIX,
            vocoder_weights,
            dtype=dtype,
            device=device,
        )
        fold_weight_norm(vocoder_module)
        matching = flow_config["decoder"]
        flow = MelFlow(
            flow_module,
            heads=int(matching["estimator"]["heads"]),
            guidance=float(matching["cfm_params"]["content"]["inference_cfg_rate"]),
            block_frames=_block_frames(matching["estimator"], path),
        )
        pages = BlockPages(flow.block, config.memory.flow_cache_bytes, device)
        vocoder = HarmonicVocoder(vocoder_module, vocoder_config)
    log.info(
        "stream cache: %d blocks of %d frames, %.1f MB each",
        pages.count,
        flow.block.frames,
        flow.block.page_bytes / 1e6,
    )
    return SpeechDecoder(flow, vocoder, pages)


def _object(told: dict[str, Any], path: Path, name: str) -> dict[str, Any]:
    """Return an object of the YAML file. Raises `FailedPrecondition` if it does not exist."""
    part = told.get(name)
    if not isinstance(part, dict):
        raise FailedPrecondition(f"{path}: {name} is missing or not an object; {REMEDY}")
    return part


def _block_frames(estimator: Mapping[str, Any], path: Path) -> int:
    """Return the number of frames in a block.

    Raises `FailedPrecondition` if it is not a multiple of the number of frames per code.
    """
    frames = int(estimator["static_chunk_size"])
    if frames < 1 or frames % FRAMES_PER_CODE:
        raise FailedPrecondition(
            f"{path}: flow.decoder.estimator.static_chunk_size is {frames}, which is not a "
            f"multiple of the {FRAMES_PER_CODE} frames per code; {REMEDY}"
        )
    return frames
