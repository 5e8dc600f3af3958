"""Loads token2image from the directory of MAGVITv2."""

from __future__ import annotations

from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.dynin_omni import DRAWING, IMAGE_TOKENS, TOKEN2IMAGE, CheckpointDirs
from antiphon.runtime.engine import LoadedStage
from antiphon_services.magvit.drawing_engine import DrawingTerms
from antiphon_services.magvit.drawing_stage import drawing_stage

TERMS = DrawingTerms(TOKEN2IMAGE, IMAGE_TOKENS, DRAWING)


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Raises what `drawing_stage` does, and `FailedPrecondition` without one of the directories."""
    dirs = CheckpointDirs.find(model_dir, config.audio_tokenizer_dir, config.image_tokenizer_dir)
    return drawing_stage(TERMS, model_dir, dirs.image, config, checkpoint=dirs.all)
