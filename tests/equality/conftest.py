"""Checkpoints of two shapes, the reference on each, and the real services on each.

The services run as four processes for the whole suite; requests go through the
gateway's gRPC door with ids and codec frames included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from truth import Truth

import antiphon
from antiphon.deployment.launcher import Launcher, Running
from antiphon.testing.local_deployment import local_deployment
from antiphon.testing.reference import Reference
from antiphon.testing.tiny_checkpoint import OTHER, SMALL, build_tiny_checkpoint

SHAPES = {"small": SMALL, "other": OTHER}


@pytest.fixture(scope="session", params=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> str:
    """The name of a checkpoint's shape."""
    return str(request.param)


@pytest.fixture(scope="session")
def checkpoint(shape: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the shape."""
    directory = tmp_path_factory.mktemp("checkpoints") / shape
    build_tiny_checkpoint(directory, SHAPES[shape])
    return directory


@pytest.fixture(scope="session")
def truth(checkpoint: Path) -> Truth:
    """The reference on the checkpoint."""
    return Truth(Reference(checkpoint))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running(checkpoint: Path) -> AsyncIterator[Running]:
    """All services on the checkpoint."""
    async with Launcher(local_deployment(checkpoint)) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(running: Running) -> AsyncIterator[antiphon.AsyncClient]:
    """A client of the running services."""
    async with antiphon.AsyncClient(running.grpc_address) as client:
        yield client
