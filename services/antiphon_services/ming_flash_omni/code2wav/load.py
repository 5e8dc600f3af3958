"""Loads the code2wav stage of a Ming-flash-omni checkpoint, which is the one of Ming TTS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.engine import LoadedStage
from antiphon_services.ming_tts.code2wav.load import load as load_decoder
from antiphon_services.ming_tts.code2wav.load import memory as memory


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the audio decoder. The fingerprint covers the whole checkpoint.

    Raises the same errors as `antiphon_services.ming_tts.code2wav.load.load`.
    """
    stage = load_decoder(model_dir, config)
    facts = replace(stage.facts, checkpoint_fingerprint=fingerprint(model_dir))
    return replace(stage, facts=facts)
