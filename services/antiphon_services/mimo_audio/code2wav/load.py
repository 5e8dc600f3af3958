"""Loads the code2wav stage of a MiMo-Audio checkpoint, which is the decoder of its audio
tokenizer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading
from antiphon.pipelines.mimo_audio import (
    AUDIO,
    AUDIO_REPOSITORY,
    BLOCK_FRAMES,
    CODE2WAV,
    CODE_RATE_HZ,
    CODEBOOKS,
    CODES,
    SAMPLE_RATE_HZ,
)
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage, StageFacts
from antiphon_services.mimo_audio.code2wav.decoder import FrameCodecDecoder
from antiphon_services.mimo_audio.code2wav.engine import WindowEngine
from antiphon_services.mimo_audio.code2wav.fields import PARTS
from antiphon_services.mimo_audio.code2wav.module import CodecDecoderModule
from antiphon_services.mimo_audio.code2wav.windows import WindowPlan
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import TORCH, context_limit, require_plain_torch
from antiphon_services.stage.memory_plan import StageMemory, StoredPart, check_room
from antiphon_services.stage.precision import compute_dtype, dtype_name
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_services.vocoder.stage import NO_SAMPLING, warm_up_decoder

PREFIX, CODEBOOK = "decoder.", "encoder.quantizer.vq.layers.{}._codebook.embed"

MOST_FRAMES = 1 << 15
"""The maximum number of frames in a segment. It allows all positions in a context of 8192 positions
to be speech.
"""


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the decoder.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    weights = Weights(AUDIO_REPOSITORY.directory(model_dir, config.files))
    tables = (
        StoredPart.of_tensor(weights, CODEBOOK.format(each)) for each in range(len(CODEBOOKS))
    )
    stored = (StoredPart(weights, PREFIX), *tables)
    return StageMemory(CODE2WAV, config, stored, dtype_name(CODE2WAV, config))


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the decoder.

    Raises `InvalidArgument` if a setting does not apply to this stage, and `FailedPrecondition` if
    the parts of the checkpoint do not match.
    """
    require_plain_torch(CODE2WAV, config)
    codec_dir = AUDIO_REPOSITORY.directory(model_dir, config.files)
    check_room(memory, model_dir, config)
    decoder = load_decoder(codec_dir, config)
    limit = context_limit(CODE2WAV, config, MOST_FRAMES)
    streamed = WindowPlan(
        BLOCK_FRAMES, config.decoding.left_context_codes, config.decoding.right_context_codes
    )
    engine = WindowEngine(decoder, streamed, context_limit=limit, slots=config.slots)
    codes = np.zeros((min(BLOCK_FRAMES, limit), len(CODEBOOKS)), np.uint16)
    warm_up_decoder(engine, VocoderEdges(CODES, AUDIO), codes, streams=True)
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir, codec_dir),
        engine=TORCH,
        default_sampling=NO_SAMPLING,
        sample_rate_hz=SAMPLE_RATE_HZ,
        samples_per_frame=decoder.samples_per_frame,
        code_groups=len(CODEBOOKS),
        code_entries=max(CODEBOOKS),
        context_limit=limit,
    )
    return LoadedStage(engine, facts)


@torch.inference_mode()
def load_decoder(codec_dir: Path, config: StageConfig) -> FrameCodecDecoder:
    """Load the decoder without creating an engine.

    Raises `FailedPrecondition` if the parts of the checkpoint do not match.
    """
    path = codec_dir / CONFIG_FILE
    told, weights = read_config(codec_dir), Weights(codec_dir)
    check_fields(path, told, PARTS)
    dtype, device = compute_dtype(CODE2WAV, config), torch.device(config.device)
    with reading(path):
        module = load_submodule(
            CodecDecoderModule, told, PREFIX, weights, dtype=dtype, device=device
        )
        tables = [
            weights.read(CODEBOOK.format(channel)).to(device, dtype)
            for channel in range(len(CODEBOOKS))
        ]
        decoder = FrameCodecDecoder(module, tables, told)
    if decoder.samples_per_frame != SAMPLE_RATE_HZ / CODE_RATE_HZ:
        raise FailedPrecondition(
            f"{path}: a frame of codes has {decoder.samples_per_frame} samples instead of "
            f"{SAMPLE_RATE_HZ / CODE_RATE_HZ:g}; {REMEDY}"
        )
    for size, table in zip(CODEBOOKS, tables, strict=True):
        if len(table) != size:
            raise FailedPrecondition(
                f"{path}: a codebook has {len(table)} entries instead of {size}; {REMEDY}"
            )
    return decoder
