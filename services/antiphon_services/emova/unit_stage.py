"""Builds a stage that synthesizes speech from the units of EMOVA's speech tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import CONFIG_FILE, read_config
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage, StageFacts
from antiphon.values.options import Option
from antiphon_services.emova.synthesizer import (
    MOST_UNITS,
    SAMPLE_RATE_HZ,
    load_synthesizer,
    read_styles,
)
from antiphon_services.emova.unit_decoder_sizes import UNIT_ENTRIES
from antiphon_services.emova.unit_engine import UnitEngine, UnitStyles
from antiphon_services.stage.config_fields import ConfigPart, check_fields, names
from antiphon_services.stage.engines import TORCH, context_limit, require_plain_torch
from antiphon_services.stage.precision import compute_dtype
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_services.vocoder.stage import NO_SAMPLING, warm_up_decoder

UNIT_TYPE = "40ms_multilingual_8888_xujing_cosyvoice_FT"
UNIT_DECODER_CONFIG = ConfigPart(
    "",
    computed=names("u2s_style2idx"),
    only={"u2s_unit_type": (None, UNIT_TYPE)},
    # The size of the style table is derived from its tensor. The other fields only concern the
    # encoder.
    idle=names("u2s_num_styles u2s_dim_styles s2u_unit_type"),
)
"""How the stage handles the fields of the speech tokenizer's `config.json`."""

NEUTRAL = "gender-female_emotion-neutral_speed-normal_pitch-normal"
"""The style of requests that do not specify one. If the checkpoint does not contain it, the first
style is used instead.
"""
WARM_UP_UNITS = 4


@dataclass(frozen=True, slots=True)
class UnitTerms:
    """The names that a model family uses.

    They include the role of the stage, its edges, and the request option that selects a style.
    """

    role: str
    edges: VocoderEdges
    style: Option


def unit_stage(
    terms: UnitTerms,
    model_dir: Path,
    tokenizer_dir: Path,
    config: StageConfig,
    parts: Sequence[ConfigPart] = (UNIT_DECODER_CONFIG,),
    checkpoint: Sequence[Path] = (),
) -> LoadedStage:
    """Load the stage from the directory of the speech tokenizer.

    All stages of a model family must have the same fingerprint, so it is computed from the
    `checkpoint` directories. If there are none, it is computed from `tokenizer_dir`.

    Raises `InvalidArgument` if a setting does not apply to this stage, and `FailedPrecondition` if
    the parts of the checkpoint do not match.
    """
    require_plain_torch(terms.role, config)
    content, weights = read_config(tokenizer_dir), Weights(tokenizer_dir)
    check_fields(tokenizer_dir / CONFIG_FILE, content, parts)
    synthesizer, count = load_synthesizer(
        weights, dtype=compute_dtype(terms.role, config), device=torch.device(config.device)
    )
    numbers = read_styles(weights, content, count)
    styles = UnitStyles(
        numbers, terms.style.name, NEUTRAL if NEUTRAL in numbers else next(iter(numbers))
    )
    limit = context_limit(terms.role, config, MOST_UNITS)
    engine = UnitEngine(
        synthesizer, styles, terms.edges, terms.role, context_limit=limit, slots=config.slots
    )
    units = np.arange(min(WARM_UP_UNITS, limit), dtype=np.uint16)
    warm_up_decoder(engine, terms.edges, units)
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(*(checkpoint or (tokenizer_dir,))),
        engine=TORCH,
        default_sampling=NO_SAMPLING,
        sample_rate_hz=SAMPLE_RATE_HZ,
        code_groups=1,
        code_entries=UNIT_ENTRIES,
        context_limit=limit,
        options=(replace(terms.style, choices=tuple(numbers)),),
    )
    return LoadedStage(engine, facts)
