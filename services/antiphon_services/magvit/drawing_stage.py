"""Builds a stage that draws the image tokens of MAGVITv2."""

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
    """Load the stage from the directory of MAGVITv2.

    All stages of a family have the fingerprint of the same directories: those of `checkpoint`, or
    MAGVITv2's alone.

    Raises `InvalidArgument` for settings that do not apply, and `FailedPrecondition` when the
    checkpoint does not fit together or pillow, which writes PNG files, is not installed.
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
        model=model_dir.resolve().name,
        checkpoint_fingerprint=fingerprint(*(checkpoint or (tokenizer_dir,))),
        engine=TORCH,
        default_sampling=NO_SAMPLING,
        code_groups=1,
        code_entries=IMAGE_ENTRIES,
        context_limit=limit,
    )
    return LoadedStage(engine, facts)


def require_pillow(role: str) -> None:
    """Raise `FailedPrecondition` unless pillow is installed."""
    if importlib.util.find_spec("PIL") is None:
        raise FailedPrecondition(
            f"{role}: writes PNG files with pillow, which is not installed; "
            "pip install 'antiphon[vision]'"
        )


def _warm_up(engine: DrawingEngine, terms: DrawingTerms) -> None:
    """Draw one token, so that no request pays for what happens once."""
    tokens = {terms.tokens: np.zeros(1, np.uint16)}
    run_segment(
        engine,
        SegmentSettings("", NO_SAMPLING, frozenset({terms.image})),
        InputChunk(terms.tokens, 0, tokens, True, FinishReason.STOP),
    )
