"""Checkpoints of two shapes, the reference on each, and the real services on each.

The services run as four processes for the whole suite; requests go through the
gateway's gRPC endpoint with ids and codec frames included. `--stage-engine vllm` puts the
thinker on its other engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.reference import Reference
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.shapes import CHECKPOINTS
from tests.equality.truth import Truth

ENGINE_ARGS: dict[str, dict[str, Any]] = {
    "torch": {},
    "vllm": {"kv_cache_memory_bytes": 128 << 20},
}


@pytest.fixture(scope="package")
def thinker_engine(request: pytest.FixtureRequest) -> str:
    """The thinker's engine, from the command line."""
    return str(request.config.getoption("--stage-engine"))


@pytest.fixture(scope="package", params=list(CHECKPOINTS["torch"]))
def shape(request: pytest.FixtureRequest) -> str:
    """The name of a checkpoint's shape."""
    return str(request.param)


@pytest.fixture(scope="package")
def checkpoint(shape: str, thinker_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the shape."""
    directory = tmp_path_factory.mktemp("checkpoints") / shape
    sizes, seed = CHECKPOINTS[thinker_engine][shape]
    build_tiny_checkpoint(directory, sizes, seed)
    return directory


@pytest.fixture(scope="package")
def thinker(thinker_engine: str) -> StageConfig:
    """The thinker's configuration."""
    args = ENGINE_ARGS[thinker_engine]
    # Beside other work, as tests run, an engine that stands back gets a tenth of a core.
    return StageConfig(engine=thinker_engine, engine_args=args, engine_nice=0)


@pytest.fixture(scope="package")
def truth(checkpoint: Path) -> Truth:
    """The reference on the checkpoint."""
    return Truth(Reference(checkpoint))


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running(checkpoint: Path, thinker: StageConfig) -> AsyncIterator[Running]:
    """All services on the checkpoint."""
    async with WarmLauncher(local_deployment(checkpoint, thinker=thinker)) as running:
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def client(running: Running) -> AsyncIterator[antiphon.AsyncClient]:
    """A client of the running services."""
    async with antiphon.AsyncClient(running.grpc_address) as client:
        yield client
