"""Loads the code2wav stage of a Ming TTS checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import CONFIG_FILE, reading
from antiphon.pipelines.ming_tts import (
    AUDIO,
    CODE2WAV,
    FRAME_SAMPLES,
    FRAME_WIDTH,
    LATENT_ROWS,
    LATENTS,
    SAMPLE_RATE_HZ,
    STEP_LATENTS,
    MingCheckpoint,
)
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import InputChunk, LoadedStage, SegmentSettings, StageFacts
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.warm_up import complete
from antiphon_services.ming_tts.code2wav.engine import LatentDecoderEngine
from antiphon_services.ming_tts.code2wav.fields import FLASH_PARTS, PARTS
from antiphon_services.ming_tts.code2wav.module import (
    DECODER,
    SEMANTIC,
    UNUSED,
    AudioDecoderModule,
    DecoderSizes,
)
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import TORCH, context_limit, require_plain_torch
from antiphon_services.stage.memory_plan import (
    Cached,
    StageMemory,
    StoredPart,
    check_room,
    number_bytes,
)
from antiphon_services.stage.precision import compute_dtype, dtype_name
from antiphon_services.vocoder.stage import NO_SAMPLING

WARM_UP_FRAMES = 3
FRAME_ROWS = LATENT_ROWS * STEP_LATENTS
"""The number of rows per frame in the layers."""


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the audio decoder.

    This includes the cached rows of each session, which its later rows attend to. Raises
    `FailedPrecondition` if the checkpoint can't be read.
    """
    checkpoint = MingCheckpoint.read(model_dir)
    prefix = checkpoint.audio_prefix + DECODER
    others = (*(f"{each}." for each in SEMANTIC), *UNUSED)
    dtype = dtype_name(CODE2WAV, config)
    stored = StoredPart(
        Weights(checkpoint.audio_folder), prefix, tuple(f"{prefix}{each}" for each in others)
    )
    with reading(checkpoint.config_file):
        sizes = checkpoint.audio()["dec_kwargs"]["backbone"]
        backbone = Qwen2Config.from_dict(sizes)
        most_frames = int(sizes["max_position_embeddings"]) // FRAME_ROWS
    rows = context_limit(CODE2WAV, config, most_frames) * FRAME_ROWS
    if backbone.sliding_window:
        rows = min(rows, backbone.sliding_window - 1)
    row_bytes = Cached.of(backbone).numbers * number_bytes(dtype)
    return StageMemory(CODE2WAV, config, (stored,), dtype, session_state=lambda: rows * row_bytes)


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the audio decoder.

    Raises `InvalidArgument` if a setting does not apply to this stage, and `FailedPrecondition` if
    the parts of the checkpoint do not match.
    """
    require_plain_torch(CODE2WAV, config)
    checkpoint = MingCheckpoint.read(model_dir)
    if checkpoint.flash:
        path = checkpoint.audio_folder / CONFIG_FILE
        check_fields(path, checkpoint.audio(), FLASH_PARTS)
    else:
        path = checkpoint.config_file
        check_fields(path, checkpoint.config, PARTS)
    weights, prefix = Weights(checkpoint.audio_folder), checkpoint.audio_prefix + DECODER
    check_room(memory, model_dir, config)
    audio = checkpoint.audio()
    with reading(path):
        backbone = audio["dec_kwargs"]["backbone"]
        most_frames = int(backbone["max_position_embeddings"]) // FRAME_ROWS
    module = load_submodule(
        AudioDecoderModule,
        DecoderSizes(backbone),
        prefix,
        weights,
        dtype=compute_dtype(CODE2WAV, config),
        device=torch.device(config.device),
        skip=SEMANTIC,
        ignored=UNUSED,
    )
    limit = context_limit(CODE2WAV, config, most_frames)
    engine = LatentDecoderEngine(module, context_limit=limit, slots=config.slots)
    _warm_up(engine, min(WARM_UP_FRAMES, limit))
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(checkpoint.folder),
        engine=TORCH,
        default_sampling=NO_SAMPLING,
        sample_rate_hz=SAMPLE_RATE_HZ,
        samples_per_frame=FRAME_SAMPLES,
        code_groups=FRAME_WIDTH,
        frame_dtype="float32",
        context_limit=limit,
    )
    return LoadedStage(engine, facts)


def _warm_up(engine: LatentDecoderEngine, count: int) -> None:
    """Warm up the engine by decoding `count` frames one by one, so that no request waits for
    one-time setup.
    """
    key = SegmentKey("warm-up", 0)
    engine.admit(key, SegmentSettings("", NO_SAMPLING, frozenset({AUDIO})))
    frame = {LATENTS: np.zeros((1, FRAME_WIDTH), np.float32)}
    for position in range(count):
        engine.accept(key, InputChunk(LATENTS, position, frame))
        engine.step()
    engine.accept(key, InputChunk(LATENTS, count, {}, True, FinishReason.STOP))
    complete(engine, [key])
