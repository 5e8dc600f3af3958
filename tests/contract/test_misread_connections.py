"""A connection on which a stage has misread the name of a method.

HTTP/2 sends a header's value once and refers to it afterwards. So one byte that is changed in it on
the way spoils every later call of the method, for as long as the connection lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon_gateway.server import Gateway
from antiphon_testkit.cut_wire import CutWire
from tests.contract.fake_stages import TALKER, FakeStages
from tests.contract.served_gateway import SPOKEN, ServedGateway, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_S = 120.0


@asynccontextmanager
async def misread(word: str, last: bytes = b"_") -> AsyncIterator[tuple[ServedGateway, CutWire]]:
    """A gateway whose first use of that word in a header ends otherwise for the talker."""
    async with asyncio.timeout(LONG_S), FakeStages() as fakes:
        wire = CutWire(fakes[TALKER].address)
        wire.misspell(word.encode(), last)
        await wire.open()
        deployment = deployment_of(fakes)
        deployment.stages[TALKER] = StageConfig(addresses=(wire.address,))
        try:
            async with Gateway(deployment) as gateway:
                served = ServedGateway(fakes, gateway)
                try:
                    yield served, wire
                finally:
                    await served.close()
        finally:
            await wire.close()


@pytest.mark.parametrize(
    ("word", "last"),
    [
        ("Health/Watch", b"_"),
        ("Health/Check", b"_"),
        ("StageService/Describe", b"_"),
        ("content-type", b"\xac"),
    ],
    ids=["Watch", "Check", "Describe", "no name of a header"],
)
async def test_a_stage_becomes_ready_although_a_header_was_misread(word: str, last: bytes) -> None:
    async with misread(word, last) as (served, wire):
        await served.gateway.wait_ready()
        while not wire.damaged:
            await served.gateway.fleet.wait_changed()
        await served.gateway.wait_ready()
        assert (await served.chat(**SPOKEN)).status_code == 200


async def test_sessions_reach_a_stage_again_although_their_method_was_misread() -> None:
    async with misread("RunSession") as (served, wire):
        await served.gateway.wait_ready()
        await served.chat(**SPOKEN)
        assert wire.damaged
        await served.gateway.wait_ready()
        assert (await served.chat(**SPOKEN)).status_code == 200
