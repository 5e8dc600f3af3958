"""A checkpoint with voices, one without, and the real services on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.cosyvoice3 import PIPELINE
from antiphon_testkit.cosyvoice3.tiny_checkpoint import PRESETS, build_tiny_cosyvoice
from antiphon_tools.launcher.launcher import Running
from tests.equality.cosyvoice3.cosy_asking import Recorded
from tests.equality.read_aloud import SLOTS, Speakers, clients_of, services_on
from tests.equality.recording import SEED

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("inflect")


@pytest.fixture(scope="package")
def recorded() -> Recorded:
    """What the vendor's code makes of the cases."""
    return Recorded.read()


@pytest.fixture(scope="package")
def cosy_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoint that the vendor's code was asked on, and another one, by preset."""
    folder = tmp_path_factory.mktemp("cosyvoice3")
    for name, shape in PRESETS.items():
        build_tiny_cosyvoice(folder / name, shape, SEED)
    return {name: folder / name for name in PRESETS}


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def speaking(cosy_checkpoints: dict[str, Path]) -> AsyncIterator[dict[str, Running]]:
    """All services on each checkpoint."""
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=SLOTS))
    async with services_on(cosy_checkpoints, stages) as running:
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def speakers(speaking: dict[str, Running]) -> AsyncIterator[Speakers]:
    """A client of each."""
    async with clients_of(speaking) as clients:
        yield clients
