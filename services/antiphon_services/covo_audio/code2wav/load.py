"""Loads the code2wav stage of a Covo-Audio checkpoint, which the vendor calls token2wav."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.covo_audio import (
    AUDIO,
    CODE2WAV,
    CODE_ENTRIES,
    CODE_RATE_HZ,
    CODES,
    DECODER_FILE,
    LICENCE,
    SAMPLE_RATE_HZ,
    STATISTICS_FILE,
    TOKEN2WAV_FOLDER,
)
from antiphon.pipelines.files import REMEDY, reading, require_file
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage, StageFacts
from antiphon_services.covo_audio.code2wav.answer_flow import AnswerFlow
from antiphon_services.covo_audio.code2wav.answer_vocoder import AnswerVocoder
from antiphon_services.covo_audio.code2wav.decoder import AnswerDecoder
from antiphon_services.covo_audio.code2wav.engine import AnswerEngine
from antiphon_services.covo_audio.code2wav.module import (
    FLOW,
    VOCODER,
    AnswerFlowModule,
    AnswerFlowSizes,
    AnswerVocoderModule,
    VocoderSizes,
    is_used,
)
from antiphon_services.covo_audio.code2wav.voice_files import read_voice, voice_folder
from antiphon_services.stage.engines import TORCH, context_limit, require_plain_torch
from antiphon_services.stage.memory_plan import StageMemory, StoredPart, check_room
from antiphon_services.stage.precision import compute_dtype, dtype_name
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_services.vocoder.stage import NO_SAMPLING, warm_up_decoder

WRAPPER = "module."
"""The prefix that precedes every tensor name in files saved by a multi-GPU training run."""
MOST_CODES = 8192
"""The maximum number of codes in a segment, which corresponds to 5.5 minutes of speech. The flow
attends to all of them at once.
"""
WARM_UP_CODES = 2

Sizes = TypeVar("Sizes", AnswerFlowSizes, VocoderSizes)

log = logging.getLogger(__name__)


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the flow and the vocoder.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    weights = Weights(model_dir / TOKEN2WAV_FOLDER, DECODER_FILE)
    wrapper = WRAPPER if weights.has(WRAPPER) else ""
    stored = tuple(
        StoredPart(
            weights,
            wrapper + part,
            tuple(f"{wrapper}{part}{name}" for name in _unused(weights, wrapper, part)),
        )
        for part in (FLOW, VOCODER)
    )
    return StageMemory(CODE2WAV, config, stored, dtype_name(CODE2WAV, config))


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the flow, the vocoder and the voice.

    Raises `InvalidArgument` if a setting does not apply to this stage, and `FailedPrecondition` if
    the parts of the checkpoint do not match or the voice files are missing.
    """
    require_plain_torch(CODE2WAV, config)
    log.warning("%s: %s", model_dir, LICENCE)
    decoder = load_decoder(model_dir, config)
    limit = context_limit(CODE2WAV, config, MOST_CODES)
    engine = AnswerEngine(decoder, context_limit=limit, slots=config.slots)
    codes = np.zeros((min(WARM_UP_CODES, limit), 1), np.uint16)
    warm_up_decoder(engine, VocoderEdges(CODES, AUDIO), codes)
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
def load_decoder(model_dir: Path, config: StageConfig) -> AnswerDecoder:
    """Load the flow, the vocoder and the voice without creating an engine.

    Raises `FailedPrecondition` if they cannot be loaded.
    """
    folder = model_dir / TOKEN2WAV_FOLDER
    path = folder / DECODER_FILE
    weights = Weights(folder, DECODER_FILE)
    wrapper = WRAPPER if weights.has(WRAPPER) else ""
    check_room(memory, model_dir, config)
    dtype, device = compute_dtype(CODE2WAV, config), torch.device(config.device)
    flow_module = load_submodule(
        AnswerFlowModule,
        _sizes(AnswerFlowSizes, weights, wrapper + FLOW),
        wrapper + FLOW,
        weights,
        dtype=dtype,
        device=device,
        ignored=_unused(weights, wrapper, FLOW),
    )
    vocoder_module = load_submodule(
        AnswerVocoderModule,
        _sizes(VocoderSizes, weights, wrapper + VOCODER),
        wrapper + VOCODER,
        weights,
        dtype=dtype,
        device=device,
        ignored=_unused(weights, wrapper, VOCODER),
    )
    sizes = flow_module.sizes
    voice = read_voice(
        voice_folder(model_dir, config.files.voice_dir), latent=sizes.latent, speaker=sizes.speaker
    )
    decoder = AnswerDecoder(
        AnswerFlow(flow_module, voice),
        AnswerVocoder(vocoder_module),
        *_statistics(folder / STATISTICS_FILE, sizes.latent),
    )
    if sizes.entries != CODE_ENTRIES or decoder.samples_per_code != SAMPLE_RATE_HZ / CODE_RATE_HZ:
        raise FailedPrecondition(
            f"{path}: has {sizes.entries} codes of {decoder.samples_per_code} samples instead "
            f"of {CODE_ENTRIES} codes of {SAMPLE_RATE_HZ / CODE_RATE_HZ:g} samples; {REMEDY}"
        )
    return decoder


def _sizes(kind: type[Sizes], weights: Weights, prefix: str) -> Sizes:
    """Derive the sizes from the shapes of the tensors whose names start with `prefix`.

    Raises `FailedPrecondition` if they cannot be read.
    """
    with reading(weights.folder / DECODER_FILE), weights.open() as reader:
        names = [name for name in weights.files if name.startswith(prefix)]
        return kind.of({name.removeprefix(prefix): reader.read(name).shape for name in names})


def _unused(weights: Weights, wrapper: str, prefix: str) -> list[str]:
    """Return the names of the tensors below `prefix` that are only needed for training.

    The names do not include the prefix.
    """
    names = (name.removeprefix(wrapper) for name in weights.files)
    return [
        name.removeprefix(prefix) for name in names if name.startswith(prefix) and not is_used(name)
    ]


def _statistics(path: Path, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the mean and the variance of the latents, each of shape [width].

    Raises `FailedPrecondition` if the file is missing or invalid.
    """
    require_file(path)
    with reading(path):
        both = np.load(path, allow_pickle=False).astype(np.float32).reshape(2, width)
        if not np.isfinite(both).all() or both[1].min() < 0:
            raise ValueError("it contains a negative variance, or a number that is not finite")
        return both[0], both[1]
