from pathlib import Path

import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon_services.qwen2_5_omni.thinker.load import load
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_testkit.qwen2_5_omni.reference import Omni25Reference
from tests.unit.services.qwen2_5_omni.thinker.omni25_thinker_lab import (
    CONVERSATIONS,
    Answer,
    answer,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def reference(omni25_directory: Path) -> Omni25Reference:
    return Omni25Reference(omni25_directory)


@pytest.fixture(scope="session")
def answers(reference: Omni25Reference) -> dict[str, Answer]:
    """What Hugging Face says to every conversation."""
    return {name: answer(reference, *each) for name, each in CONVERSATIONS.items()}


@pytest.fixture(scope="session")
def shared_engine(omni25_directory: Path) -> ThinkerEngine:
    engine = load(omni25_directory, StageConfig(slots=8)).engine
    assert isinstance(engine, ThinkerEngine)
    return engine


@pytest.fixture
def engine(shared_engine: ThinkerEngine) -> ThinkerEngine:
    """One that reuses nothing of other tests."""
    shared_engine.forget()
    return shared_engine
