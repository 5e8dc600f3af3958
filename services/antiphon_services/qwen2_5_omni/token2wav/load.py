"""Loads the token2wav stage of a Qwen2.5-Omni checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2_5OmniConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, read_config
from antiphon.pipelines.qwen2_5_omni import AUDIO, BLOCK_CODES, CODES, TOKEN2WAV, code_entries
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import InputChunk, LoadedStage, SegmentSettings, StageFacts
from antiphon.transport.device_edge import ToHost
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.lm.graphs import Bucketing, graphs_of
from antiphon_services.lm.warm_up import run_segment
from antiphon_services.qwen2_5_omni.token2wav.decoder import Token2Wav
from antiphon_services.qwen2_5_omni.token2wav.engine import Token2WavEngine
from antiphon_services.qwen2_5_omni.token2wav.fields import PARTS
from antiphon_services.qwen2_5_omni.token2wav.voices import read_voices
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import TORCH, context_limit, require_plain_torch
from antiphon_services.stage.hugging_face import load_config
from antiphon_services.stage.memory_plan import StageMemory, StoredPart, check_room
from antiphon_services.stage.precision import compute_dtype, dtype_name

# The checkpoint doesn't specify the sample rate. The model card and its examples write 24 kHz
# files.
SAMPLE_RATE_HZ = 24_000

PREFIX = "token2wav."

# transformers 4.x, which saved the released checkpoints, stored this buffer. The declared reference
# (5.19) computes it instead of reading it, and so does antiphon.
STORED_BUFFERS = ("code2wav_dit_model.rotary_embed.inv_freq",)

# The stage samples noise but no IDs, so the seed is the only setting that has an effect.
ONLY_SEED = Sampling(0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1)

log = logging.getLogger(__name__)


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory that token2wav needs. Raises `FailedPrecondition` if the checkpoint can't
    be read.
    """
    skip = tuple(f"{PREFIX}{name}" for name in STORED_BUFFERS)
    stored = StoredPart(Weights(model_dir), PREFIX, skip)
    return StageMemory(TOKEN2WAV, config, (stored,), dtype_name(TOKEN2WAV, config))


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig, bucketing: Bucketing | None = None) -> LoadedStage:
    """Load token2wav and the checkpoint's voices.

    If `bucketing` is None, `torch.graphs` determines whether CUDA graphs are used. On a CPU, they
    never are. Raises `InvalidArgument` if a setting is not supported, and `FailedPrecondition` if
    the parts of the checkpoint don't match or its voices can't be read.
    """
    require_plain_torch(TOKEN2WAV, config)
    told = read_config(model_dir)
    check_fields(model_dir / CONFIG_FILE, told, PARTS)
    whole = load_config(Qwen2_5OmniConfig, model_dir, "token2wav_config").token2wav_config
    flow, vocoder = whole.dit_config, whole.bigvgan_config
    voices = read_voices(model_dir, condition_width=flow.enc_emb_dim, mel_width=vocoder.mel_dim)
    check_room(memory, model_dir, config)
    module = load_submodule(
        Qwen2_5OmniToken2WavModel,
        whole,
        PREFIX,
        Weights(model_dir),
        dtype=compute_dtype(TOKEN2WAV, config),
        device=torch.device(config.device),
        ignored=STORED_BUFFERS,
    )
    model = Token2Wav(module, voices, bucketing or graphs_of(config))
    if model.code_entries != code_entries(told):
        raise FailedPrecondition(f"{TOKEN2WAV} only has rows for {model.code_entries} codes")
    limit = context_limit(TOKEN2WAV, config, model.most_codes)
    to_host = ToHost.of(config)
    engine = Token2WavEngine(
        model,
        context_limit=limit,
        slots=config.slots,
        held_blocks=config.decoding.held_blocks,
        to_host=to_host,
    )
    _warm_up(engine, min(BLOCK_CODES + 1, limit))
    log.info("a stream holds back %d blocks of %d codes", config.decoding.held_blocks, BLOCK_CODES)
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir),
        engine=TORCH,
        default_sampling=ONLY_SEED,
        voices=model.voices,
        sample_rate_hz=SAMPLE_RATE_HZ,
        samples_per_frame=model.samples_per_code,
        code_groups=1,
        code_entries=model.code_entries,
        context_limit=limit,
    )
    return LoadedStage(engine, facts, to_host)


def _warm_up(engine: Token2WavEngine, count: int) -> None:
    """Warm up the engine by decoding `count` codes, so that no request waits for one-time setup."""
    codes = {CODES: np.zeros((count, 1), np.uint16)}
    run_segment(
        engine,
        SegmentSettings("", ONLY_SEED, frozenset({AUDIO})),
        InputChunk(CODES, 0, codes, True, FinishReason.STOP),
    )
