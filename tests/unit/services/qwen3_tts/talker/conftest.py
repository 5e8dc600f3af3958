from __future__ import annotations

from pathlib import Path

import pytest
from tts_talker_lab import Lab

from antiphon.chunk import Tensors


@pytest.fixture(scope="session")
def labs(checkpoints: dict[str, Path], recorded: Tensors) -> dict[str, Lab]:
    return {kind: Lab(path, recorded) for kind, path in checkpoints.items()}
