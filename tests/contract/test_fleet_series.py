"""What the gateway's page tells of the replicas of its stages."""

from __future__ import annotations

import time

import pytest

from antiphon.errors import Internal, ResourceExhausted
from antiphon_gateway.fleet.picker import PickReason
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import CODE2WAV, TALKER, THINKER, FakeStage, FakeStages, Session
from tests.contract.replicated_stages import Replicas, open_replicas
from tests.contract.served_gateway import SPOKEN, deployment_of
from tests.metrics_page import Page, read_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST_ASKED = 64
STATES = ("ready", "starting", "draining", "ejected", "away")


async def full(session: Session) -> None:
    await session.error(ResourceExhausted("all slots are taken", retry_after_s=1.0))


async def fail(session: Session) -> None:
    await session.opened()
    await session.error(Internal("the engine raised"))


async def page_of(gateway: Gateway) -> Page:
    return await read_page(f"http://{gateway.http_address}/metrics")


def states(page: Page, role: str) -> dict[str, float]:
    """How many of its replicas are in each state in which one is; all states are told."""
    told = {each.labels["state"]: each for each in page.all("antiphon_gateway_replicas", role=role)}
    assert set(told) == set(STATES)
    return {state: each.value for state, each in told.items() if each.value}


def picks(page: Page, role: str) -> dict[str, float]:
    told = page.all("antiphon_gateway_picks_total", role=role)
    by_reason = {each.labels["reason"]: each.value for each in told}
    assert set(by_reason) == set(PickReason)
    return {reason: count for reason, count in by_reason.items() if count}


async def test_replicas_are_told_by_state_and_their_drains_and_ejections_are_counted() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = fail

    async with open_replicas(
        thinker=3, talker=2, prepare=prepare, eject_failures=1, eject_s=3600.0, max_eject_s=3600.0
    ) as replicas:
        page = await page_of(replicas.gateway)
        assert states(page, THINKER) == {"ready": 3}
        assert states(page, TALKER) == {"ready": 2}
        assert 0 < page("antiphon_gateway_discovery_last_sync_seconds") <= time.time()
        for role in (THINKER, TALKER, CODE2WAV):
            for counted in ("ejections", "drains", "stage_refusals"):
                assert list(page.all(f"antiphon_gateway_{counted}_total", role=role))
        while replicas.gateway.fleet[THINKER].serving == 3:
            await replicas.chat()
        leaving, away = replicas.fakes[THINKER][1], replicas.fakes[TALKER][0]
        # It says so again when its last session has ended.
        for busy in (True, False):
            leaving.tell_load(draining=True, slots=4, open_segments=int(busy))
            await replicas.until(lambda: replicas.replica(leaving).draining)
            await replicas.until(lambda busy=busy: replicas.replica(leaving).busy == busy)
        await away.set_serving(False)
        await replicas.until(lambda: not replicas.replica(away).ready)
        page = await page_of(replicas.gateway)
    assert states(page, THINKER) == {"ready": 1, "ejected": 1, "draining": 1}
    assert states(page, TALKER) == {"ready": 1, "away": 1}
    assert page("antiphon_gateway_ejections_total", role=THINKER) == 1
    assert page("antiphon_gateway_drains_total", role=THINKER) == 1
    assert page("antiphon_gateway_drains_total", role=TALKER) == 0


async def test_a_replica_that_has_never_served_is_starting() -> None:
    async with FakeStages() as fakes:
        await fakes[TALKER].set_serving(False)
        async with Gateway(deployment_of(fakes)) as gateway:
            while "NOT_SERVING" not in gateway.fleet[TALKER].reason:
                await gateway.fleet.wait_changed()
            page = await page_of(gateway)
    assert states(page, TALKER) == {"starting": 1}
    assert page("antiphon_gateway_stage_ready", stage=TALKER) == 0


async def picked(replicas: Replicas) -> dict[str, dict[str, float]]:
    page = await page_of(replicas.gateway)
    return {role: picks(page, role) for role in (THINKER, TALKER, CODE2WAV)}


async def test_sessions_are_counted_by_why_they_got_their_replica() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for role in (THINKER, TALKER):
            fakes[role][0].description.host_id = "one-host"

    async with open_replicas(thinker=2, talker=2, prepare=prepare) as replicas:
        for _ in range(8):
            assert (await replicas.chat(**SPOKEN)).status_code == 200
        counts = await picked(replicas)
        assert counts[THINKER] == {"load": 8}
        assert counts[CODE2WAV] == {"only": 8}
        on_host = len(replicas.fakes[THINKER][0].sessions)
        # Where the thinker is on the host, so is one of the talkers.
        assert counts[TALKER] == {
            reason: count for reason, count in (("near", on_host), ("load", 8 - on_host)) if count
        }
        fleet = replicas.gateway.fleet
        _, first = fleet.assign(frozenset({"text"}))
        with first, fleet.assign(frozenset({"text"}), preferred=first)[1] as second:
            assert second.replicas == first.replicas
        assert (await picked(replicas))[THINKER] == {"load": 9, "sticky": 1}


async def test_refusals_are_counted_and_who_goes_on_elsewhere_takes_a_detour() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = full

    async with open_replicas(thinker=2, prepare=prepare) as replicas:
        asked, full_one = 0, replicas.fakes[THINKER][0]
        # Of two that are alike either may be picked.
        while not full_one.sessions and asked < MOST_ASKED:
            asked += 1
            assert (await replicas.chat()).status_code == 200
        page = await page_of(replicas.gateway)
    refused = len(full_one.sessions)
    assert refused
    labels = {"role": THINKER, "code": "resource_exhausted"}
    assert page("antiphon_gateway_stage_refusals_total", **labels) == refused
    assert page("antiphon_gateway_stage_refusals_total", role=THINKER, code="unavailable") == 0
    assert picks(page, THINKER) == {"load": asked, "detour": refused}
