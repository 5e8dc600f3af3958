"""Loads token2image from the MAGVITv2 directory."""

from __future__ import annotations

from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.dynin_omni import DRAWING, IMAGE_TOKENS, TOKEN2IMAGE, CheckpointDirs
from antiphon.runtime.engine import LoadedStage
from antiphon_services.magvit.drawing_engine import DrawingTerms
from antiphon_services.magvit.drawing_stage import drawing_stage
from antiphon_services.magvit.image_decoder import PREFIX
from antiphon_services.magvit.image_sizes import image_weights
from antiphon_services.stage.memory_plan import StageMemory, StoredPart, check_room
from antiphon_services.stage.precision import dtype_name

TERMS = DrawingTerms(TOKEN2IMAGE, IMAGE_TOKENS, DRAWING)


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the image decoder.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    dirs = CheckpointDirs.find(model_dir, config.files)
    stored = StoredPart(image_weights(dirs.image), PREFIX)
    return StageMemory(TOKEN2IMAGE, config, (stored,), dtype_name(TOKEN2IMAGE, config))


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the stage.

    Raises `FailedPrecondition` if one of the directories is missing, as well as the errors of
    `drawing_stage`.
    """
    dirs = CheckpointDirs.find(model_dir, config.files)
    check_room(memory, model_dir, config)
    return drawing_stage(TERMS, model_dir, dirs.image, config, checkpoint=dirs.all)
