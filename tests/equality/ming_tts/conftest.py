"""The checkpoint that the vendor's code was asked on, and what it said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.ming_tts import PIPELINE
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import FLASH, UNBOUNDED, WINDOWED
from antiphon_tools.launcher.launcher import Running
from tests.equality.ming_tts.ming_asking import Recorded
from tests.equality.ming_tts.ming_cases import SEED
from tests.equality.ming_tts.ming_in_process import TalkerInProcess
from tests.equality.read_aloud import SLOTS, Speakers, clients_of, services_on

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


@pytest.fixture(scope="package")
def recorded() -> Recorded:
    """What the vendor's code makes of the cases."""
    return Recorded.read()


@pytest.fixture(scope="package")
def ming_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that the vendor's code was asked on."""
    folder = tmp_path_factory.mktemp("ming_tts") / "tiny"
    build_tiny_ming(folder, WINDOWED, SEED)
    return folder


@pytest.fixture(scope="package")
def talker(ming_checkpoint: Path) -> TalkerInProcess:
    """The talker of the checkpoint."""
    return TalkerInProcess(ming_checkpoint)


@pytest.fixture(scope="package")
def ming_checkpoints(
    ming_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """That checkpoint, one whose sizes differ, and one of Ming-flash-omni, by name."""
    other = tmp_path_factory.mktemp("ming_tts") / "unbounded"
    build_tiny_ming(other, UNBOUNDED, SEED)
    flash = other.with_name("flash")
    build_tiny_ming(flash, FLASH, SEED)
    return {"windowed": ming_checkpoint, "unbounded": other, "flash": flash}


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def speaking(ming_checkpoints: dict[str, Path]) -> AsyncIterator[dict[str, Running]]:
    """All services on each checkpoint."""
    stages = dict.fromkeys(PIPELINE.roles, StageConfig(slots=SLOTS))
    async with services_on(ming_checkpoints, stages) as running:
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def speakers(speaking: dict[str, Running]) -> AsyncIterator[Speakers]:
    """A client of each."""
    async with clients_of(speaking) as clients:
        yield clients
