"""Loads unit2wav from the directory of EMOVA's speech tokenizer."""

from __future__ import annotations

from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.dynin_omni import AUDIO, STYLE, UNIT2WAV, UNITS, CheckpointDirs
from antiphon.runtime.engine import LoadedStage
from antiphon_services.emova.unit_stage import UnitTerms, unit_stage
from antiphon_services.vocoder.audio_segment import VocoderEdges

TERMS = UnitTerms(UNIT2WAV, VocoderEdges(UNITS, AUDIO), STYLE)


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Raises what `unit_stage` does, and `FailedPrecondition` without one of the directories."""
    dirs = CheckpointDirs.find(model_dir, config.audio_tokenizer_dir, config.image_tokenizer_dir)
    return unit_stage(TERMS, model_dir, dirs.speech, config, checkpoint=dirs.all)
