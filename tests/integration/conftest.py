"""Tiny checkpoints for the tests that run the real services; a stage without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from antiphon.runtime.engine import LoadedStage
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from antiphon_testkit.stage_harness import RunningStage
from tests.integration.stage_session import Session, line_of_one, own_stream


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default tiny checkpoint."""
    directory = tmp_path_factory.mktemp("tiny") / "tiny"
    build_tiny_checkpoint(directory)
    return directory


@pytest.fixture(scope="session")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint that speaks until its limit: the end of speech is never drawn."""
    directory = tmp_path_factory.mktemp("talkative") / "talkative"
    build_tiny_checkpoint(directory, TinyShape(endless_speech=True))
    return directory


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    """An engine without a model; what it holds back is let go at the end."""
    engine = FakeEngine()
    yield engine
    engine.gate.set()


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[RunningStage]:
    """A code2wav stage that runs it."""
    async with running_stage(LoadedStage(engine, FACTS), "code2wav") as running:
        yield running


@pytest.fixture(params=[own_stream, line_of_one], ids=["stream", "line"])
def each_carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are RunSession streams, and lines of RunSessions streams."""
    monkeypatch.setattr(Session, "carrier", staticmethod(request.param))
