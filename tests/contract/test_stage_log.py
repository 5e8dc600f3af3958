"""What the gateway's log says of its stages: a start is no fault, and an outage is one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.transport.mutual_tls import ServiceTls
from antiphon.v1 import stage_pb2
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.fleet.replica_watch import ReplicaWatch
from antiphon_testkit.certificates import make_service_certificates
from tests.contract.fake_stages import TALKER, THINKER, FakeStage, describe, think
from tests.contract.served_gateway import deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

GENEROUS_S = 240.0
NOBODY = "127.0.0.1:1"


class Watched:
    """A replica that the gateway's watch follows."""

    def __init__(self, address: str, role: str = THINKER, tls: ServiceTls | None = None) -> None:
        self._changed = asyncio.Event()
        config = deployment_of().gateway
        place = Endpoint(role=role, uid="a", address=address)
        self.replica = Replica(place, config, lambda _: self._changed.set(), tls)
        self._watch = ReplicaWatch(self.replica, config, tls)

    async def until(self, met: Callable[[], bool]) -> None:
        """Return when a change has brought this about."""
        async with asyncio.timeout(GENEROUS_S):
            while not met():
                await self._changed.wait()
                self._changed.clear()

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch.run())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await self.replica.close()


@pytest_asyncio.fixture(loop_scope="session")
async def stage() -> AsyncIterator[FakeStage]:
    """One that loads."""
    fake = FakeStage(THINKER, think, describe(THINKER))
    await fake.start()
    await fake.set_serving(False)
    yield fake
    await fake.die()


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="gateway.stages")
    return caplog


def levels(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in log.records if record.name == "gateway.stages"]


async def test_a_stage_that_loads_is_no_fault(
    stage: FakeStage, log: pytest.LogCaptureFixture
) -> None:
    watched = Watched(stage.address)
    async with watched.following():
        await watched.until(lambda: "NOT_SERVING" in watched.replica.reason)
        await stage.set_serving(True)
        await watched.until(lambda: watched.replica.ready)
    at = f"stage {THINKER} at {stage.address}"
    assert f"{at} is not ready yet: it is NOT_SERVING" in log.messages
    assert log.messages.count(f"{at} is ready") == 1
    assert set(levels(log)) == {"INFO"}


async def test_a_stage_that_does_not_listen_yet_is_no_fault(log: pytest.LogCaptureFixture) -> None:
    watched = Watched(NOBODY)
    before = watched.replica.reason
    async with watched.following():
        await watched.until(lambda: watched.replica.reason != before)
    assert any("is not ready yet" in message for message in log.messages)
    assert set(levels(log)) == {"INFO"}


async def test_a_stage_that_served_and_is_gone_is_one(
    stage: FakeStage, log: pytest.LogCaptureFixture
) -> None:
    await stage.set_serving(True)
    watched = Watched(stage.address)
    async with watched.following():
        await watched.until(lambda: watched.replica.ready)
        await stage.set_serving(False)
        await watched.until(lambda: not watched.replica.ready)
    assert levels(log).count("WARNING") == 1
    assert f"stage {THINKER} at {stage.address} is down: it is NOT_SERVING" in log.messages


async def test_a_stage_of_another_role_is_one_from_the_start(
    stage: FakeStage, log: pytest.LogCaptureFixture
) -> None:
    await stage.set_serving(True)
    watched = Watched(stage.address, TALKER)
    async with watched.following():
        await watched.until(lambda: THINKER in watched.replica.reason)
    assert "WARNING" in levels(log)


async def test_a_stage_without_the_certificates_is_one_from_the_start(
    stage: FakeStage, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tls = ServiceTls(make_service_certificates(tmp_path, (THINKER, "gateway")), "gateway")
    watched = Watched(stage.address, tls=tls)
    async with watched.following():
        await watched.until(lambda: "handshake" in watched.replica.reason.lower())
    assert "WARNING" in levels(log)


async def test_readiness_is_logged_once_until_something_changes(
    log: pytest.LogCaptureFixture,
) -> None:
    """A probe and the health stream may both find a stage ready."""
    first, second = (stage_pb2.DescribeResponse(role=THINKER, boot_id=each) for each in "ab")
    replica = Watched(NOBODY).replica
    replica.rise(first)
    replica.rise(first)
    assert len(log.messages) == 1
    replica.rise(second)
    assert len(log.messages) == 2
    replica.fall("it is NOT_SERVING")
    replica.rise(second)
    assert [each.endswith("is ready") for each in log.messages] == [True, True, False, True]
