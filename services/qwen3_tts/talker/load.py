"""Loads the talker of Qwen3-TTS."""

from __future__ import annotations

from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.errors import NotImplementedYet
from antiphon.runtime.engine import LoadedStage


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Raises `NotImplementedYet`: there is no engine yet."""
    raise NotImplementedYet(f"{model_dir}: the talker of Qwen3-TTS has no engine yet")
