"""Loads the code2wav stage of a Qwen3-Omni checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, read_config
from antiphon.pipelines.qwen3_omni import CODE2WAV, PIPELINE
from antiphon.runtime.checkpoint.submodule import construct, load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.qwen3_omni.code2wav.fields import PARTS
from antiphon_services.qwen3_omni.code2wav.module import Code2WavModule
from antiphon_services.qwen3_omni.code2wav.vocoder import vocoder_of
from antiphon_services.qwen3_omni.config import Code2WavConfig, OmniConfig
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import require_plain_torch
from antiphon_services.stage.hugging_face import load_config
from antiphon_services.stage.memory_plan import StageMemory, StoredPart, check_room
from antiphon_services.stage.precision import compute_dtype, dtype_name
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_services.vocoder.stage import VocoderTerms, state_bytes, vocoder_stage
from antiphon_services.vocoder.stream import Vocoder

# The checkpoint doesn't specify the sample rate. The model card and its examples write 24 kHz
# files.
SAMPLE_RATE_HZ = 24_000

PREFIX = "code2wav."

EDGES = VocoderEdges(frames=PIPELINE.edge("codes").name, audio=PIPELINE.edge("audio").name)


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory that the vocoder needs. Raises `FailedPrecondition` if the checkpoint can't
    be read.
    """

    def session_state() -> int:
        module = construct(Code2WavModule, _decoder_config(model_dir))
        return state_bytes(vocoder_of(module.to("meta", getattr(torch, dtype))))

    dtype = dtype_name(CODE2WAV, config)
    stored = StoredPart(Weights(model_dir), PREFIX)
    return StageMemory(CODE2WAV, config, (stored,), dtype, session_state=session_state)


def load(model_dir: Path, config: StageConfig, bucketing: Bucketing | None = None) -> LoadedStage:
    """Load the vocoder and return the stage.

    If `bucketing` is None, `torch.graphs` determines it. Raises `InvalidArgument` if the configured
    engine is not torch, and `FailedPrecondition` if the checkpoint has unsupported fields.
    """
    require_plain_torch(CODE2WAV, config)
    check_fields(model_dir / CONFIG_FILE, read_config(model_dir), PARTS)
    check_room(memory, model_dir, config)
    decoder_config = _decoder_config(model_dir)
    dtype = compute_dtype(CODE2WAV, config)

    def vocoder() -> Vocoder:
        weights, device = Weights(model_dir), config.device
        return vocoder_of(
            load_submodule(
                Code2WavModule, decoder_config, PREFIX, weights, dtype=dtype, device=device
            )
        )

    terms = VocoderTerms(
        EDGES,
        model_dir / CONFIG_FILE,
        SAMPLE_RATE_HZ,
        most_frames=decoder_config.max_position_embeddings,
        steady=PIPELINE.chunk_policy.steady,
    )
    return vocoder_stage(vocoder, terms, model_dir, config, bucketing)


def _decoder_config(model_dir: Path) -> Code2WavConfig:
    """Return `code2wav_config`. Raises `FailedPrecondition` if the checkpoint doesn't support audio
    output.
    """
    whole = load_config(OmniConfig, model_dir, "code2wav_config")
    if not whole.enable_audio_output:
        raise FailedPrecondition(f"{model_dir}: this checkpoint can't generate audio")
    return cast(Code2WavConfig, whole.code2wav_config)
