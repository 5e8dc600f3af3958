"""A checkpoint of each kind and the real services on it, for all tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_tts import PIPELINE
from antiphon_testkit.qwen3_tts.tiny_checkpoint import PRESETS, build_tiny_tts
from antiphon_tools.launcher.launcher import Running
from tests.equality.qwen3_tts.tts_asking import Recorded
from tests.equality.read_aloud import SLOTS, Speakers, clients_of, services_on
from tests.equality.recording import SEED

CONTEXT_LIMIT = 2048


@pytest.fixture(scope="package")
def recorded() -> Recorded:
    """What the vendor's package makes of the cases."""
    with np.load(Path(__file__).parent / "recorded.npz") as file:
        return Recorded(dict(file))


@pytest.fixture(scope="package")
def tts_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoints that the vendor's package was asked on, by kind."""
    folder = tmp_path_factory.mktemp("qwen3-tts")
    for kind, shape in PRESETS.items():
        build_tiny_tts(folder / kind, shape, SEED)
    return {kind: folder / kind for kind in PRESETS}


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def speaking(tts_checkpoints: dict[str, Path]) -> AsyncIterator[dict[str, Running]]:
    """All services on each checkpoint."""
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=SLOTS, context_limit=CONTEXT_LIMIT))
    async with services_on(tts_checkpoints, stages) as running:
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def speakers(speaking: dict[str, Running]) -> AsyncIterator[Speakers]:
    """A client of each."""
    async with clients_of(speaking) as clients:
        yield clients
