"""Builds a stage that converts MAGVITv2's image tokens to images."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.engine import InputChunk, LoadedStage, SegmentSettings, StageFacts
from antiphon.values.segment import FinishReason
from antiphon_services.lm.warm_up import run_segment
from antiphon_services.magvit.drawing_engine import DrawingEngine, DrawingTerms
from antiphon_services.magvit.image_decoder import load_image_decoder
from antiphon_services.magvit.image_sizes import IMAGE_ENTRIES, MOST_SIDE_TOKENS, image_weights
from antiphon_services.stage.engines import TORCH, context_limit, require_plain_torch
from antiphon_services.stage.precision import compute_dtype
from antiphon_services.vocoder.stage import NO_SAMPLING


def drawing_stage(
    terms: DrawingTerms,
    model_dir: Path,
    tokenizer_dir: Path,
    config: StageConfig,
    checkpoint: Sequence[Path] = (),
) -> LoadedStage:
    """Load the stage from the MAGVITv2 directory.

    All stages of a model family must have the same fingerprint, so it is computed from the
    `checkpoint` directories. If there are none, it is computed from `tokenizer_dir`.

    Raises `InvalidArgument` if a setting does not apply to this stage. Raises `FailedPrecondition`
    if the parts of the checkpoint do not match, or if Pillow, which is used to write PNG files, is
    not installed.
    """
    require_plain_torch(terms.role, config)
    require_pillow(terms.role)
    decoder = load_image_decoder(
        image_weights(tokenizer_dir),
        dtype=compute_dtype(terms.role, config),
        device=torch.device(config.device),
    )
    limit = context_limit(terms.role, config, MOST_SIDE_TOKENS**2)
    engine = DrawingEngine(decoder, terms, context_limit=limit, slots=config.slots)
    _warm_up(engine, terms)
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(*(checkpoint or (tokenizer_dir,))),
        engine=TORCH,
        default_sampling=NO_SAMPLING,
        code_groups=1,
        code_entries=IMAGE_ENTRIES,
        context_limit=limit,
    )
    return LoadedStage(engine, facts)


def require_pillow(role: str) -> None:
    """Raise `FailedPrecondition` if Pillow is not installed."""
    if importlib.util.find_spec("PIL") is None:
        raise FailedPrecondition(
            f"{role}: writing PNG files requires pillow, which is not installed; pip install "
            "'antiphon[vision]'"
        )


def _warm_up(engine: DrawingEngine, terms: DrawingTerms) -> None:
    """Warm up the engine by generating an image from one token, so that no request waits for
    one-time setup.
    """
    tokens = {terms.tokens: np.zeros(1, np.uint16)}
    run_segment(
        engine,
        SegmentSettings("", NO_SAMPLING, frozenset({terms.image})),
        InputChunk(terms.tokens, 0, tokens, True, FinishReason.STOP),
    )
