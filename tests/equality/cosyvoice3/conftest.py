"""A checkpoint with voices, one without, and the real services on each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from cosy_asking import SLOTS, Recorded

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.cosyvoice3 import PIPELINE
from antiphon.testing.cosyvoice3.tiny_checkpoint import PRESETS, build_tiny_cosyvoice
from antiphon.testing.local_deployment import local_deployment
from tests.equality.cosyvoice3.cosy_cases import SEED
from tools.launcher.launcher import Launcher, Running

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
    launchers = [Launcher(local_deployment(path, **stages)) for path in cosy_checkpoints.values()]
    async with contextlib.AsyncExitStack() as stack:
        running = await asyncio.gather(*(stack.enter_async_context(each) for each in launchers))
        yield dict(zip(cosy_checkpoints, running, strict=True))


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def speakers(
    speaking: dict[str, Running],
) -> AsyncIterator[dict[str, antiphon.AsyncClient]]:
    """A client of each."""
    async with contextlib.AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(antiphon.AsyncClient(running.grpc_address))
            for name, running in speaking.items()
        }
