from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.values.chunk import Tensors
from tests.unit.services.qwen3_tts.talker.tts_talker_lab import Lab


@pytest.fixture(scope="session")
def plain_labs(checkpoints: dict[str, Path], recorded: Tensors) -> dict[str, Lab]:
    return {kind: Lab(path, recorded) for kind, path in checkpoints.items()}


@pytest.fixture(scope="session")
def labs_ahead(checkpoints: dict[str, Path], recorded: Tensors) -> dict[str, Lab]:
    return {kind: Lab(path, recorded, launch_ahead=True) for kind, path in checkpoints.items()}


@pytest.fixture
def launch_ahead() -> bool:
    """Whether the labs' engines do; modules whose tests run with both override it."""
    return False


@pytest.fixture
def labs(request: pytest.FixtureRequest, launch_ahead: bool) -> dict[str, Lab]:
    chosen: dict[str, Lab] = request.getfixturevalue("labs_ahead" if launch_ahead else "plain_labs")
    return chosen
