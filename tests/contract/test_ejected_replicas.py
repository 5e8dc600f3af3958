"""Replicas that get no sessions for a while, most because they fail; and what they count for."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from antiphon.errors import Internal
from tests.contract.fake_stages import THINKER, FakeStage, Session, think
from tests.contract.replicated_stages import open_replicas
from tests.contract.slotted_stages import Gate, waiting_requests

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def fail(session: Session) -> None:
    await session.opened()
    await session.error(Internal("the engine raised"))


async def test_one_of_eight_gets_little_while_it_is_slow_and_nothing_when_it_fails() -> None:
    stuck = Gate(THINKER)

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = stuck

    async with open_replicas(
        thinker=8, prepare=prepare, eject_failures=3, eject_s=3600.0, max_eject_s=3600.0
    ) as replicas:
        thinker, slow = replicas.gateway.fleet[THINKER], replicas.fakes[THINKER][0]
        waiting: list[asyncio.Task[httpx.Response]] = []
        while not slow.sessions:
            asked = asyncio.create_task(replicas.chat())
            begun = asyncio.create_task(stuck.begun.get())
            await asyncio.wait({asked, begun}, return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
            waiting.append(asked)
        for _ in range(25):
            assert (await replicas.chat()).status_code == 200
        assert len(slow.sessions) == 1, "the others have less to do"
        # Now it has nothing to do, and looks better than those that answer.
        slow.script = fail
        stuck.let_through()
        assert [each.status_code for each in await asyncio.gather(*waiting)] == [200] * len(waiting)
        # Of so many it gets three, or chance is against it by 1 to 10 ** 9.
        answers = []
        while thinker.serving == 8 and len(answers) < 250:
            answers.append((await replicas.chat()).status_code)
        assert answers.count(500) == 3
        assert thinker.serving == 7
        for _ in range(20):
            assert (await replicas.chat()).status_code == 200
        assert len(slow.sessions) == 1 + 3


async def test_an_ejected_replica_is_used_when_it_is_the_last() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = fail

    async with open_replicas(
        thinker=2, prepare=prepare, eject_failures=1, eject_s=3600.0, max_eject_s=3600.0
    ) as replicas:
        ejected, other = replicas.fakes[THINKER]
        thinker = replicas.gateway.fleet[THINKER]
        while thinker.serving == 2:
            await replicas.chat()
        ejected.script = think
        await other.set_serving(False)
        await replicas.until(lambda: not replicas.replica(other).takes_sessions)
        assert (await replicas.chat()).status_code == 200
        assert (await replicas.http.get("/health")).json()["ready"]


async def test_slots_that_an_ejected_replica_gives_back_are_not_counted() -> None:
    gate = Gate(THINKER)

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.description.slots = 1
        fakes[THINKER][0].script = gate

    async with open_replicas(
        thinker=2,
        prepare=prepare,
        max_waiting=8,
        eject_failures=1,
        eject_s=3600.0,
        max_eject_s=3600.0,
    ) as replicas:
        fleet = replicas.gateway.fleet
        replicas.replica(replicas.fakes[THINKER][1]).segments = 1
        running = asyncio.create_task(replicas.chat())
        await gate.begun.get()
        fleet[THINKER].failed(replicas.replica(replicas.fakes[THINKER][0]), None)
        assert fleet.slots[THINKER] == 2, "one that is free, and one that is taken"
        gate.let_through()
        assert (await running).status_code == 200
        await replicas.until(lambda: fleet.slots[THINKER] == 1)


async def test_a_timer_lets_nobody_back_for_whom_it_was_not_set() -> None:
    async with open_replicas(thinker=4, eject_failures=1, eject_s=3600.0) as replicas:
        thinker = replicas.gateway.fleet[THINKER]
        first, second = (replicas.replica(each) for each in replicas.fakes[THINKER][:2])
        thinker.failed(first, None)
        moment = thinker.outliers.next_deadline()
        assert moment is not None
        thinker.failed(second, None)
        thinker.outliers.forget(first)
        thinker._time_passed(moment)
        assert thinker.outliers.is_out(second)


async def test_a_replica_half_full_of_this_gateways_segments_has_room() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].description.slots = 2
        fakes[THINKER][0].tell_load(slots=2, open_segments=1)

    async with open_replicas(prepare=prepare) as replicas:
        replica = replicas.replica(replicas.fakes[THINKER][0])
        await replicas.until(lambda: replica.busy)
        replica.segments = 1
        assert not replica.is_full
        replica.segments = 2
        assert replica.is_full


async def test_choices_wait_for_a_replica_that_is_away() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.description.slots = 2

    async with open_replicas(
        thinker=2, prepare=prepare, max_waiting=8, queue_timeout_s=600.0
    ) as replicas:
        away = replicas.fakes[THINKER][0]
        away.tell_load(draining=True, slots=2)
        await replicas.until(lambda: replicas.gateway.fleet.slots[THINKER] == 2)
        with waiting_requests() as waiting:
            asked = asyncio.create_task(replicas.chat(n=3))
            begun = asyncio.create_task(waiting.until(1))
            await asyncio.wait({asked, begun}, return_when=asyncio.FIRST_COMPLETED)
            assert not asked.done()
            assert (await replicas.chat()).status_code == 200, "it keeps nobody from what is there"
            away.tell_load(draining=False, slots=2)
            answer = await asked
        assert answer.status_code == 200
        assert len(answer.json()["choices"]) == 3
