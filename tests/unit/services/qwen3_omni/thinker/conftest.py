from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.engine import LoadedStage
from antiphon_services.qwen3_omni.thinker.load import load
from antiphon_testkit.qwen3_omni.tiny_checkpoint import OTHER, SMALL, build_tiny_checkpoint
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import EVERYTHING
from tests.unit.services.qwen3_omni.thinker.thinker_reference import (
    MAX_TOKENS,
    Cases,
    Reference,
    clear_replies,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small") / "tiny-small"
    build_tiny_checkpoint(directory, SMALL, seed=3)
    return directory


@pytest.fixture(scope="session")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("other") / "tiny-other"
    build_tiny_checkpoint(directory, OTHER, seed=4)
    return directory


@pytest.fixture(scope="session", params=["small", "other"])
def model_dir(request: pytest.FixtureRequest, small_dir: Path, other_dir: Path) -> Path:
    return {"small": small_dir, "other": other_dir}[request.param]


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Reference:
    return Reference(model_dir)


@pytest.fixture(scope="session")
def cases(reference: Reference) -> Cases:
    """What Hugging Face answers to every conversation, greedily, with `MAX_TOKENS` at most."""
    chosen = clear_replies(reference, EVERYTHING, MAX_TOKENS)
    assert len(chosen) >= len(EVERYTHING) - 3
    return chosen


@pytest.fixture(scope="session")
def stage(model_dir: Path) -> LoadedStage:
    return load(model_dir, StageConfig())


@pytest.fixture(scope="session")
def small_stage(small_dir: Path) -> LoadedStage:
    return load(small_dir, StageConfig())
