"""Replicas that discovery tells of, one after the other, with what runs on them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import cast

import grpc
import pytest
import pytest_asyncio

from antiphon.deployment.schema import StageConfig
from antiphon.errors import Unavailable
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.orders.order import Order
from tests.closed_replicas import note_closed
from tests.contract.fake_stages import THINKER, FakeStage, describe, think
from tests.contract.served_gateway import deployment_of
from tests.contract.slotted_stages import Gate

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_S = 120.0
ORDER = Order(
    messages=(ConversationMessage("user", (TextPart("Hi"),)),), outputs=frozenset({"text"})
)


class Site:
    """Two thinkers, the calls of a gateway, and a discovery that tells what the test tells."""

    def __init__(self) -> None:
        self.fakes = [FakeStage(THINKER, think, describe(THINKER)) for _ in range(2)]
        self.last_sync: float | None = None
        self.sets: asyncio.Queue[frozenset[Endpoint] | Exception] = asyncio.Queue()
        deployment = deployment_of(failover_return_s=LONG_S)
        deployment.stages[THINKER] = StageConfig()
        self.fleet = Fleet(deployment, self)
        self.calls = Calls(self.fleet, deployment.gateway, {}, Metrics(in_flight=lambda: 0.0))

    async def watch(self) -> AsyncIterator[frozenset[Endpoint]]:
        while True:
            told = await self.sets.get()
            if isinstance(told, Exception):
                raise told
            yield told

    async def tell(self, **addresses: str) -> None:
        """These replicas are all, by uid; those that are new serve when this returns."""
        self.sets.put_nowait(
            frozenset(Endpoint(role=THINKER, uid=u, address=a) for u, a in addresses.items())
        )
        stage = self.fleet[THINKER]
        while {each.endpoint.uid for each in stage} != set(addresses) or (
            stage.serving != len(addresses)
        ):
            await self.fleet.wait_changed()

    async def answer(self) -> None:
        async with self.calls.answer(ORDER) as segment:
            async for _ in segment:
                pass


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        site = Site()
        for fake in site.fakes:
            await fake.start()
            stack.push_async_callback(fake.die)
        await stack.enter_async_context(site.fleet)
        yield site


async def test_what_runs_on_a_replica_that_is_gone_goes_on_and_nothing_new_begins(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, closed = Gate(THINKER), note_closed(monkeypatch)
    old, new = site.fakes
    old.script = gate
    await site.tell(a=old.address)
    (replica,) = site.fleet[THINKER]
    running = asyncio.create_task(site.answer())
    await gate.begun.get()
    await site.tell(b=new.address)
    await site.answer()
    assert (len(old.sessions), len(new.sessions)) == (1, 1)
    assert replica.channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN
    gate.let_through()
    await running
    assert await closed.get() is replica
    assert replica.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
    assert len(site.fleet[THINKER]) == 1


async def test_another_process_at_the_same_address_is_another_replica(site: Site) -> None:
    fake = site.fakes[0]
    await site.tell(a=fake.address)
    (before,) = site.fleet[THINKER]
    await site.tell(b=fake.address)
    (after,) = site.fleet[THINKER]
    assert after is not before
    await site.answer()


async def test_a_terminating_replica_gets_nothing_and_none_at_all_is_a_503(site: Site) -> None:
    await site.tell(a=site.fakes[0].address, b=site.fakes[1].address)
    stage = site.fleet[THINKER]
    site.sets.put_nowait(
        frozenset(
            Endpoint(role=THINKER, uid=u, address=fake.address, terminating=u == "a")
            for u, fake in zip("ab", site.fakes, strict=True)
        )
    )
    while stage.serving != 1:
        await site.fleet.wait_changed()
    for _ in range(6):
        await site.answer()
    assert [len(fake.sessions) for fake in site.fakes] == [0, 6]
    await site.tell()
    with pytest.raises(Unavailable) as refused:
        await site.answer()
    assert refused.value.retry_after_s
    assert refused.value.stage == THINKER


async def test_discovery_goes_on_when_its_source_or_what_follows_has_failed(site: Site) -> None:
    async with asyncio.timeout(120):
        await site.tell(a=site.fakes[0].address)
        site.sets.put_nowait(RuntimeError("internal error"))
        # No endpoint at all.
        site.sets.put_nowait(frozenset({cast(Endpoint, None)}))
        await site.tell(b=site.fakes[1].address)
        await site.answer()
        assert [len(fake.sessions) for fake in site.fakes] == [0, 1]


async def test_nothing_is_kept_of_a_replica_that_left_busy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, closed = site.fakes[0], note_closed(monkeypatch)
    fake.tell_load(open_segments=1)
    await site.tell(a=fake.address)
    stage = site.fleet[THINKER]
    (replica,) = stage
    while not replica.busy:
        await site.fleet.wait_changed()
    left = weakref.ref(replica)
    del replica
    await site.tell()
    assert await closed.get() is left()
    gc.collect()
    assert left() is None
    assert not stage.states.total()


async def test_the_load_of_a_process_that_is_told_of_anew_counts_once(site: Site) -> None:
    gate, fake = Gate(THINKER), site.fakes[0]
    fake.script = gate
    fake.tell_load(boot_id="one", open_segments=1)
    await site.tell(a=fake.address)
    running = asyncio.create_task(site.answer())
    await gate.begun.get()
    await site.tell(b=fake.address)
    (replica,) = site.fleet[THINKER]
    while not replica.busy:
        await site.fleet.wait_changed()
    assert [load.open_segments for load in site.fleet[THINKER].reported] == [1]
    gate.let_through()
    await running


async def test_session_that_waits_for_a_stage_is_not_opened_when_the_gateway_shuts_down(
    site: Site,
) -> None:
    await site.tell(a=site.fakes[0].address)
    (replica,) = site.fleet[THINKER]
    description = replica.description
    assert description is not None
    prepared = await site.calls.prepare(ORDER)
    replica.fall("lost")

    async def open_session() -> None:
        async with site.calls.session(prepared):
            pass

    opening = asyncio.create_task(open_session())
    # It begins to wait.
    await asyncio.sleep(0)
    site.calls.refuse()
    replica.rise(description)
    with pytest.raises(Unavailable, match="shutting down"):
        await opening
    assert replica.sessions == 0
    prepared.media.release()
