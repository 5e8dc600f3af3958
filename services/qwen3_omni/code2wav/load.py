"""Loads code2wav of Qwen3-Omni."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

import numpy as np
import torch
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, reading
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage, StageFacts
from antiphon.sampling import Sampling
from antiphon.transport.device_edge import ToHost
from services.engines import TORCH, check_device, require_torch
from services.hugging_face import load_config
from services.lm.graphs import Bucketing, graphs_of
from services.qwen3_omni.code2wav.vocoder import vocoder_of
from services.vocoder.engine import Code2WavEngine
from services.vocoder.pace import ACCELERATOR, CPU
from services.vocoder.stream import StreamDecoder, StreamPiece

# Not in the checkpoint: the model card and its examples write 24 kHz files.
SAMPLE_RATE_HZ = 24_000

CODE_DTYPE_ENTRIES = 1 << 16
# A start and one more: the first kernels of a process, and those that a later call adds.
WARM_UP_FRAMES = (2, 1)

log = logging.getLogger(__name__)


def load(model_dir: Path, config: StageConfig, bucketing: Bucketing | None = None) -> LoadedStage:
    """The stage, ready to run; `bucketing` is what `config.graphs` chooses if None.

    Raises `InvalidArgument` for another engine, `FailedPrecondition` for what it cannot run.
    """
    require_torch("code2wav", config)
    check_device(config)
    module = load_submodule(
        Qwen3OmniMoeCode2Wav,
        _read_config(model_dir),
        "code2wav.",
        Weights(model_dir),
        dtype=getattr(torch, config.dtype),
        device=config.device,
    )
    with reading(model_dir / CONFIG_FILE):
        decoder = StreamDecoder(vocoder_of(module))
    if decoder.entries > CODE_DTYPE_ENTRIES:
        raise FailedPrecondition(f"codes travel as uint16; the codebooks have {decoder.entries}")
    context_limit = config.context_limit or module.config.max_position_embeddings
    _warm_up(decoder)
    pace = CPU if decoder.device.type == "cpu" else ACCELERATOR
    to_host = ToHost.of(config)
    engine = Code2WavEngine(
        decoder,
        context_limit,
        config.slots,
        pace,
        to_host,
        bucketing or graphs_of(config),
        steady=PIPELINE.chunk_policy.steady,
    )
    log.info(
        "%d slots of %d bytes: %.1f MB of decoder state",
        config.slots,
        decoder.state_bytes,
        config.slots * decoder.state_bytes / 1e6,
    )
    return LoadedStage(engine, _facts(model_dir, decoder, context_limit), to_host)


def _warm_up(decoder: StreamDecoder) -> None:
    """Decode a little, so that no request pays for firsts."""
    states = decoder.new_states(1)
    states.reset(0)
    for frames in WARM_UP_FRAMES:
        decoder.decode(states, [StreamPiece(0, np.zeros((frames, decoder.groups), np.uint16))])


def _read_config(model_dir: Path) -> Qwen3OmniMoeCode2WavConfig:
    """The decoder's part of `config.json`."""
    whole = load_config(Qwen3OmniMoeConfig, model_dir, "code2wav_config")
    if not whole.enable_audio_output:
        raise FailedPrecondition(f"{model_dir}: this checkpoint makes no audio")
    return cast(Qwen3OmniMoeCode2WavConfig, whole.code2wav_config)


def _facts(model_dir: Path, decoder: StreamDecoder, context_limit: int) -> StageFacts:
    """What the stage tells about itself."""
    # The stage draws nothing: settings without effect.
    nothing = Sampling(0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1)
    return StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir),
        engine=TORCH,
        default_sampling=nothing,
        sample_rate_hz=SAMPLE_RATE_HZ,
        samples_per_frame=decoder.samples_per_frame,
        code_groups=decoder.groups,
        code_entries=decoder.entries,
        context_limit=context_limit,
    )
