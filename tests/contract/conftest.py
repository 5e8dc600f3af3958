from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

import antiphon
from antiphon_gateway.media.decoding import processes
from tests.contract.reading_model import Reader, open_reader
from tests.contract.served_gateway import ServedGateway, serve_gateway


@pytest.fixture
def fuzz_seed(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--fuzz-seed"))


@pytest.fixture(scope="session", autouse=True)
def decoders_that_yield_to_nobody() -> Iterator[None]:
    """On a machine whose cores are all taken, a decoder of the last lane hardly gets any time.

    A test of the niceness has the lanes as they are.
    """
    with pytest.MonkeyPatch.context() as patch:
        equal = tuple(replace(each, niceness=0) for each in processes.LANES)
        patch.setattr(processes, "LANES", equal)
        yield


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_gateway() -> AsyncIterator[ServedGateway]:
    async with serve_gateway() as served:
        yield served


@pytest.fixture
def served(shared_gateway: ServedGateway, caplog: pytest.LogCaptureFixture) -> ServedGateway:
    """The shared gateway, its stages with their usual scripts."""
    caplog.set_level(logging.INFO, logger="gateway.requests")
    shared_gateway.fakes.reset()
    return shared_gateway


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reader() -> AsyncIterator[Reader]:
    async with open_reader() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def client(served: ServedGateway) -> AsyncIterator[antiphon.AsyncClient]:
    """The SDK's client of the shared gateway."""
    async with antiphon.AsyncClient(served.gateway.grpc_address) as connected:
        yield connected
