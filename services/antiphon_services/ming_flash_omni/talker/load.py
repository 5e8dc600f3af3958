"""Loads the talker of a Ming-flash-omni checkpoint, which speaks the thinker's text.

It is the talker of Ming TTS, except that the text arrives from the thinker.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.ming_flash_omni import TEXT
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.engine import LoadedStage
from antiphon_services.ming_tts.talker.load import load as load_talker
from antiphon_services.ming_tts.talker.load import memory as memory


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the talker. The fingerprint covers the whole checkpoint.

    Raises the same errors as `antiphon_services.ming_tts.talker.load.load`.
    """
    stage = load_talker(model_dir, config, text_edge=TEXT)
    facts = replace(stage.facts, checkpoint_fingerprint=fingerprint(model_dir))
    return replace(stage, facts=facts)
