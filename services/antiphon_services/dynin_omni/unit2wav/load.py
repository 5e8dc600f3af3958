"""Loads unit2wav from the directory of EMOVA's speech tokenizer."""

from __future__ import annotations

from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.dynin_omni import AUDIO, STYLE, UNIT2WAV, UNITS, CheckpointDirs
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon_services.emova.synthesizer import STYLES
from antiphon_services.emova.unit_decoder import TRAINED_WITH
from antiphon_services.emova.unit_decoder_sizes import PREFIX
from antiphon_services.emova.unit_stage import UnitTerms, unit_stage
from antiphon_services.stage.memory_plan import StageMemory, StoredPart, check_room
from antiphon_services.stage.precision import dtype_name
from antiphon_services.vocoder.audio_segment import VocoderEdges

TERMS = UnitTerms(UNIT2WAV, VocoderEdges(UNITS, AUDIO), STYLE)


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the synthesizer.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    dirs = CheckpointDirs.find(model_dir, config.files)
    weights = Weights(dirs.speech)
    unused = tuple(f"{PREFIX}{name}" for name in TRAINED_WITH)
    stored = StoredPart(weights, PREFIX, unused), StoredPart.of_tensor(weights, STYLES)
    return StageMemory(UNIT2WAV, config, stored, dtype_name(UNIT2WAV, config))


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the stage.

    Raises `FailedPrecondition` if one of the directories is missing, as well as the errors of
    `unit_stage`.
    """
    dirs = CheckpointDirs.find(model_dir, config.files)
    check_room(memory, model_dir, config)
    return unit_stage(TERMS, model_dir, dirs.speech, config, checkpoint=dirs.all)
