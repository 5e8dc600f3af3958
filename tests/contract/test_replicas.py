"""Several replicas of a stage: who gets a session, and what becomes of it when one fails."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from antiphon.errors import Internal, ResourceExhausted, Unavailable
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon_gateway.conversations.kept_session import ConversationSession
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import SegmentFinished
from tests.contract.fake_stages import (
    CODE2WAV,
    ROLES,
    TALKER,
    THINKER,
    USUAL,
    FakeStage,
    Script,
    Session,
    think,
)
from tests.contract.replicated_stages import Replicas, open_replicas
from tests.contract.served_gateway import SPOKEN
from tests.contract.slotted_stages import Gate

pytestmark = pytest.mark.asyncio(loop_scope="session")

ORDER = Order(
    messages=(ConversationMessage("user", (TextPart("Hi"),)),), outputs=frozenset({"text"})
)


async def full(session: Session) -> None:
    await session.error(ResourceExhausted("all slots are taken", retry_after_s=1.0))


async def stopping(session: Session) -> None:
    await session.error(Unavailable("the stage stops", retry_after_s=1.0))


async def fail_before_output(session: Session) -> None:
    await session.opened()
    await session.error(Unavailable("the engine is gone"))


async def fail(session: Session) -> None:
    await session.opened()
    await session.error(Internal("the engine raised"))


async def statuses(replicas: Replicas, count: int) -> Counter[int]:
    return Counter([(await replicas.chat()).status_code for _ in range(count)])


async def test_all_replicas_get_sessions_whose_stages_are_told_the_very_processes() -> None:
    async with open_replicas(talker=2, code2wav=2) as replicas:
        for _ in range(40):
            assert (await replicas.chat(**SPOKEN)).status_code == 200
        assert all(map(all, map(replicas.sessions, ROLES))), "a replica was never used"
        having = {
            session.opening.session_id: fake
            for fake in replicas.fakes[TALKER]
            for session in fake.sessions
        }
        for session in replicas.fakes[THINKER][0].sessions:
            talker = having[session.opening.session_id]
            targets = [each.stage for r in session.opening.routes for each in r.destinations]
            told = {(each.address, each.boot_id) for each in targets if each.address}
            assert told == {(talker.address, talker.description.boot_id)}


async def test_the_next_stage_is_taken_where_the_one_before_it_is() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].description.host_id = "here"
        fakes[TALKER][0].description.host_id = "there"
        fakes[TALKER][1].description.host_id = "here"

    async with open_replicas(talker=2, prepare=prepare) as replicas:
        for _ in range(10):
            assert (await replicas.chat(**SPOKEN)).status_code == 200
        assert replicas.sessions(TALKER) == [0, 10]


async def test_answers_go_on_when_a_replica_dies() -> None:
    """Also those that are sent to it before anyone knows."""
    async with open_replicas(thinker=2) as replicas:
        dead = replicas.fakes[THINKER][0]
        await dead.die()
        assert await statuses(replicas, 8) == {200: 8}
        await replicas.until(lambda: replicas.gateway.fleet[THINKER].serving == 1)
        health = (await replicas.http.get("/health")).json()
        assert health["ready"]
        told = health["stages"][THINKER]
        assert (told["ready"], told["replicas"], told["serving"]) == (True, 2, 1)
        await dead.start()
        await replicas.until(lambda: replicas.gateway.fleet[THINKER].serving == 2)
        dead.sessions.clear()
        while not dead.sessions:
            assert (await replicas.chat()).status_code == 200


@pytest.mark.parametrize("refuse", [full, stopping, fail_before_output])
async def test_a_request_goes_to_another_replica_when_one_refuses(refuse: object) -> None:
    """No client sees it, though nothing may wait (`max_waiting`)."""

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = refuse  # type: ignore[assignment]

    async with open_replicas(thinker=2, prepare=prepare, eject_failures=1000) as replicas:
        refusing = replicas.fakes[THINKER][0]
        while len(refusing.sessions) < 3:
            assert (await replicas.chat()).status_code == 200


class _FirstSession:
    """A script for the first session, and another one for those after it."""

    def __init__(self, first: Script, others: Script) -> None:
        self._scripts = iter([first])
        self._others = others

    async def __call__(self, session: Session) -> None:
        await next(self._scripts, self._others)(session)


async def test_a_request_whose_replica_died_goes_past_one_that_is_full() -> None:
    """What the dead one gave it is no slot of the next one."""

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = fail_before_output
        fakes[THINKER][1].script = full

    async with open_replicas(
        thinker=3, prepare=prepare, max_waiting=8, eject_failures=1000, queue_timeout_s=600.0
    ) as replicas:
        # Of two replicas the one with less to do is taken: the order is that of these loads.
        for load, fake in enumerate(replicas.fakes[THINKER]):
            replicas.replica(fake).segments = load
        while not all(replicas.sessions()):
            assert (await replicas.chat()).status_code == 200


async def test_a_request_whose_replica_died_waits_for_a_slot_of_the_other() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = _FirstSession(fail_before_output, full)
        fakes[THINKER][1].script = _FirstSession(full, think)

    async with open_replicas(
        thinker=2, prepare=prepare, max_waiting=8, eject_failures=1000, queue_timeout_s=600.0
    ) as replicas:
        replicas.replica(replicas.fakes[THINKER][1]).segments = 1
        assert (await replicas.chat()).status_code == 200
        assert all(replicas.sessions())


async def test_a_request_is_refused_when_every_replica_refuses() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.script = full

    async with open_replicas(thinker=2, prepare=prepare) as replicas:
        assert (await replicas.chat()).status_code == 429
        assert replicas.sessions() == [1, 1]


async def test_a_draining_replica_gets_nothing_new_until_it_is_back() -> None:
    async with open_replicas(thinker=2) as replicas:
        leaving = replicas.fakes[THINKER][0]
        leaving.tell_load(draining=True)
        await replicas.until(lambda: replicas.replica(leaving).draining)
        assert await statuses(replicas, 10) == {200: 10}
        assert replicas.sessions() == [0, 10]
        leaving.tell_load(draining=False)
        await replicas.until(lambda: not replicas.replica(leaving).draining)
        while not leaving.sessions:
            assert (await replicas.chat()).status_code == 200


async def test_a_replica_that_others_load_gets_less() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.description.slots = 4
        fakes[THINKER][0].tell_load(slots=4, open_segments=4)

    async with open_replicas(thinker=2, prepare=prepare) as replicas:
        busy = replicas.replica(replicas.fakes[THINKER][0])
        while not busy.load:
            assert (await replicas.chat()).status_code == 200
        before = replicas.sessions()[0]
        assert await statuses(replicas, 10) == {200: 10}
        assert replicas.sessions()[0] == before


async def test_a_fleet_holds_two_checkpoints_and_no_session_mixes_them() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for stage in fakes.values():
            stage[0].description.checkpoint_fingerprint = "old"
            stage[1].description.checkpoint_fingerprint = "new"

    async with open_replicas(thinker=2, talker=2, code2wav=2, prepare=prepare) as replicas:
        assert (await replicas.http.get("/health")).json()["ready"]
        for _ in range(30):
            assert (await replicas.chat(**SPOKEN)).status_code == 200
        for number in (0, 1):
            ids = [
                {each.opening.session_id for each in replicas.fakes[role][number].sessions}
                for role in ROLES
            ]
            assert ids[0]
            assert ids[0] == ids[1] == ids[2]
        new = replicas.fakes[TALKER][1]
        await new.set_serving(False)
        await replicas.until(lambda: replicas.gateway.fleet[TALKER].serving == 1)
        before = replicas.sessions(CODE2WAV)[1]
        for _ in range(10):
            assert (await replicas.chat(**SPOKEN)).status_code == 200
        assert replicas.sessions(CODE2WAV)[1] == before, "the new one is not whole"


async def test_one_of_eight_that_fails_at_once_costs_few_answers() -> None:
    """It has free slots always, and would get more sessions than all others."""

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = fail

    async with open_replicas(thinker=8, prepare=prepare, eject_s=3600.0, max_eject_s=3600.0) as (
        replicas
    ):
        assert await statuses(replicas, 100) == {200: 97, 500: 3}
        assert replicas.sessions()[0] == 3


async def test_an_ejected_replica_is_tried_again_and_is_back_when_that_is_answered() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = fail

    async with open_replicas(thinker=2, prepare=prepare, eject_failures=1, eject_s=0.05) as (
        replicas
    ):
        failing = replicas.fakes[THINKER][0]
        while not failing.sessions:
            await replicas.chat()
        failing.script = think
        while len(failing.sessions) < 3:
            await replicas.chat()
        assert replicas.gateway.fleet[THINKER].serving == 2


async def test_slots_are_those_of_all_replicas_and_of_what_still_runs_on_one_that_leaves() -> None:
    gates = [Gate(THINKER), Gate(THINKER)]

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake, gate in zip(fakes[THINKER], gates, strict=True):
            fake.script = gate
            fake.description.slots = 1

    async with open_replicas(thinker=2, prepare=prepare, max_waiting=8) as replicas:
        fleet = replicas.gateway.fleet
        assert fleet.slots[THINKER] == 2
        first = asyncio.create_task(replicas.chat())
        begun = [asyncio.create_task(gate.begun.get()) for gate in gates]
        done, _ = await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        leaving = begun.index(*done)
        replicas.fakes[THINKER][leaving].tell_load(draining=True, slots=1)
        await replicas.until(lambda: fleet[THINKER].serving == 1)
        assert fleet.slots[THINKER] == 2, "one free, and one that is taken where it leaves"
        second = asyncio.create_task(replicas.chat())
        await begun[1 - leaving]
        gates[leaving].let_through()
        assert (await first).status_code == 200
        await replicas.until(lambda: fleet.slots[THINKER] == 1)
        gates[1 - leaving].let_through()
        assert (await second).status_code == 200


async def turns(session: Session) -> None:
    """A thinker that answers turn after turn."""
    await think(session)
    while True:
        await session.next_segment()
        await think(session)


async def test_a_conversation_stays_on_its_replica_until_that_drains() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.script = turns

    async with open_replicas(thinker=4, prepare=prepare) as replicas:
        conversation = ConversationSession(replicas.gateway.calls, listen_idle_s=600.0)

        async def turn() -> None:
            async with conversation.turn(ORDER, lambda place: None) as segment:
                events = [event async for event in segment]
            assert isinstance(events[-1], SegmentFinished)

        for _ in range(4):
            await turn()
        assert sorted(replicas.sessions()) == [0, 0, 0, 1]
        home = replicas.fakes[THINKER][replicas.sessions().index(1)]
        home.tell_load(draining=True)
        await replicas.until(lambda: replicas.replica(home).draining)
        await turn()
        assert sorted(replicas.sessions()) == [0, 0, 1, 1]
        assert len(home.sessions) == 1
        await home.sessions[0].ended.wait()
        await conversation.close()


@pytest.mark.parametrize("between_turns", [True, False])
async def test_a_conversation_leaves_a_replica_that_drains_before_its_next_turn(
    between_turns: bool,
) -> None:
    """The stage would wait for it, for as long as nobody speaks."""

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.script = turns

    async with asyncio.timeout(120), open_replicas(thinker=2, prepare=prepare) as replicas:
        conversation = ConversationSession(replicas.gateway.calls, listen_idle_s=600.0)

        async def drain(home: FakeStage) -> None:
            home.tell_load(draining=True)
            await replicas.until(lambda: replicas.replica(home).draining)

        async with conversation.turn(ORDER, lambda place: None) as segment:
            home = replicas.fakes[THINKER][replicas.sessions().index(1)]
            if not between_turns:
                await drain(home)
                assert not home.sessions[0].ended.is_set()
            events = [event async for event in segment]
        assert isinstance(events[-1], SegmentFinished)
        if between_turns:
            await drain(home)
        await home.sessions[0].ended.wait()
        async with conversation.turn(ORDER, lambda place: None) as segment:
            assert [event async for event in segment]
        assert replicas.sessions() == [1, 1]
        await conversation.close()


async def test_a_turn_goes_to_another_replica_when_its_own_has_no_slot() -> None:
    refusing: list[Session] = []

    async def once(session: Session) -> None:
        await think(session)
        refusing.append(session)
        await session.refuse_segment(ResourceExhausted("all slots are taken", retry_after_s=1.0))
        async for _ in session.requests:
            pass

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.script = once

    async with open_replicas(thinker=2, prepare=prepare) as replicas:
        conversation = ConversationSession(replicas.gateway.calls, listen_idle_s=600.0)
        for _ in range(2):
            async with conversation.turn(ORDER, lambda place: None) as segment:
                async for _ in segment:
                    pass
        assert replicas.sessions() == [1, 1]
        await conversation.close()


async def test_one_replica_alone_is_used_however_often_it_fails() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        fakes[THINKER][0].script = fail

    async with open_replicas(prepare=prepare, eject_failures=1) as replicas:
        assert await statuses(replicas, 4) == {500: 4}
        replicas.fakes[THINKER][0].script = USUAL[THINKER]
        assert await statuses(replicas, 1) == {200: 1}
