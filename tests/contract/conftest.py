from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from gateway_door import Door, open_door
from reading_model import Reader, open_reader

import antiphon


@pytest.fixture
def fuzz_seed(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--fuzz-seed"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_door() -> AsyncIterator[Door]:
    async with open_door() as door:
        yield door


@pytest.fixture
def door(shared_door: Door, caplog: pytest.LogCaptureFixture) -> Door:
    """The shared gateway, its stages with their usual scripts."""
    caplog.set_level(logging.INFO, logger="gateway.requests")
    shared_door.fakes.reset()
    return shared_door


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reader() -> AsyncIterator[Reader]:
    async with open_reader() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def client(door: Door) -> AsyncIterator[antiphon.AsyncClient]:
    """The SDK's client of the shared gateway."""
    async with antiphon.AsyncClient(door.gateway.grpc_address) as connected:
        yield connected
