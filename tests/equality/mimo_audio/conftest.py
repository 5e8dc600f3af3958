"""The checkpoints that the vendor's code was asked on, and what it made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.mimo_audio import PIPELINE, TALKER
from antiphon_testkit.mimo_audio.tiny_checkpoint import (
    LANGUAGE_MODEL,
    PRESETS,
    build_tiny_mimo,
)
from antiphon_tools.launcher.launcher import Running
from tests.equality.mimo_audio.mimo_cases import SEED
from tests.equality.mimo_audio.mimo_lab import MimoLab, Recorded
from tests.equality.read_aloud import SLOTS, Speakers, clients_of, services_on


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """No gradients."""
    with torch.inference_mode():
        yield


@pytest.fixture(scope="package")
def recorded() -> Recorded:
    """What the vendor's code makes of the cases."""
    return Recorded.read()


@pytest.fixture(scope="package")
def mimo_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders with both directories of a checkpoint, by preset."""
    folder = tmp_path_factory.mktemp("mimo_audio")
    for name, shape in PRESETS.items():
        build_tiny_mimo(folder / name, shape, SEED)
    return {name: folder / name for name in PRESETS}


@pytest.fixture(scope="package")
def mimo_labs(mimo_checkpoints: dict[str, Path]) -> dict[str, MimoLab]:
    """By preset."""
    return {name: MimoLab(folder) for name, folder in mimo_checkpoints.items()}


@pytest.fixture(params=PRESETS)
def preset(request: pytest.FixtureRequest) -> str:
    """The name of a checkpoint."""
    return str(request.param)


@pytest.fixture
def lab(preset: str, mimo_labs: dict[str, MimoLab]) -> MimoLab:
    """The parts of that checkpoint."""
    return mimo_labs[preset]


@pytest.fixture
def lab_ids(lab: MimoLab) -> Mapping[str, int]:
    """The ids of its tokenizer."""
    return lab.ids


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def speaking(mimo_checkpoints: dict[str, Path]) -> AsyncIterator[dict[str, Running]]:
    """All services on each checkpoint. Transcripts of what says nothing go on to the limit."""
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=SLOTS))
    stages[TALKER] = StageConfig(slots=SLOTS, context_limit=512)
    models = {name: folder / LANGUAGE_MODEL for name, folder in mimo_checkpoints.items()}
    async with services_on(models, stages) as running:
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def speakers(speaking: dict[str, Running]) -> AsyncIterator[Speakers]:
    """A client of each."""
    async with clients_of(speaking) as clients:
        yield clients
