"""Loads the code2wav stage of a Qwen3-TTS checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import CONFIG_FILE
from antiphon.pipelines.qwen3_tts import CODE2WAV, CODEC_FOLDER, PIPELINE, SAMPLE_RATE_HZ
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.qwen3_tts.code2wav.module import (
    describe_codec_decoder,
    load_codec_decoder,
    vocoder_of,
)
from antiphon_services.stage.engines import require_plain_torch
from antiphon_services.stage.memory_plan import StageMemory, StoredPart, check_room
from antiphon_services.stage.precision import compute_dtype, dtype_name
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_services.vocoder.stage import VocoderTerms, state_bytes, vocoder_stage
from antiphon_services.vocoder.stream import Vocoder


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory that the codec's decoder needs. Raises `FailedPrecondition` if the
    checkpoint can't be read.
    """

    def session_state() -> int:
        module = describe_codec_decoder(model_dir)
        return state_bytes(vocoder_of(module.to("meta", getattr(torch, dtype))))

    dtype = dtype_name(CODE2WAV, config)
    stored = StoredPart(Weights(model_dir / CODEC_FOLDER), "decoder.")
    return StageMemory(CODE2WAV, config, (stored,), dtype, session_state=session_state)


def load(model_dir: Path, config: StageConfig, bucketing: Bucketing | None = None) -> LoadedStage:
    """Load the codec's decoder and return the stage.

    If `bucketing` is None, `torch.graphs` determines it. Raises `InvalidArgument` if the configured
    engine is not torch, and `FailedPrecondition` if the checkpoint is not supported.
    """
    require_plain_torch(CODE2WAV, config)
    check_room(memory, model_dir, config)
    dtype = compute_dtype(CODE2WAV, config)
    terms = VocoderTerms(
        VocoderEdges(frames=PIPELINE.edge("codes").name, audio=PIPELINE.edge("audio").name),
        model_dir / CODEC_FOLDER / CONFIG_FILE,
        SAMPLE_RATE_HZ,
        most_frames=describe_codec_decoder(model_dir).config.max_position_embeddings,
        steady=PIPELINE.chunk_policy.steady,
    )

    def vocoder() -> Vocoder:
        return vocoder_of(load_codec_decoder(model_dir, dtype, config.device))

    return vocoder_stage(vocoder, terms, model_dir, config, bucketing)
