"""A replica is lost in the middle of an answer, which goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest
from google.protobuf.message import Message

from antiphon.errors import (
    AntiphonError,
    DataLoss,
    Internal,
    ResourceExhausted,
    Unavailable,
)
from antiphon.v1 import session_pb2
from antiphon.values.segment import FinishReason
from antiphon.wire import checksum
from antiphon_gateway.conversations.kept_session import ConversationSession
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import Event, SegmentFinished, TextProduced
from tests.contract.failing_stages import (
    LOST,
    ORDER,
    Failing,
    answered,
    begin,
    check_whole,
    failing,
    told_by,
)
from tests.contract.fake_stages import (
    CODE2WAV,
    ROLES,
    TALKER,
    TEXTS,
    THINKER,
    USUAL,
    FakeStage,
    Session,
    think,
)
from tests.contract.replicated_stages import open_replicas
from tests.contract.served_gateway import SPOKEN

pytestmark = pytest.mark.asyncio(loop_scope="session")

GENEROUS_S = 240.0
BRIEF_S = 1e-6
"""Over before anything is asked again."""


@pytest.mark.parametrize("error", [LOST, DataLoss("a chunk was lost")])
@pytest.mark.parametrize("role", ROLES)
async def test_an_answer_goes_on_when_a_replica_is_lost(role: str, error: AntiphonError) -> None:
    script = Failing(role, error)
    counts = dict.fromkeys(ROLES, 2)
    async with open_replicas(**counts, prepare=failing(role, script)) as replicas:

        def fail(events: list[Event]) -> None:
            if told_by(role, events):
                script.now.set()

        check_whole(await answered(replicas, fail))
        assert replicas.sessions(role) == [1, 1]
        first, second = (fake.sessions[0] for fake in replicas.fakes[role])
        seeds = {each.seed for s in (first, second) for each in s.segment.sampling.values()}
        assert len(seeds) == 1
        for other in set(ROLES) - {role}:
            assert sorted(replicas.sessions(other)) == [0, 2], "the others stay where they were"
        text = (await replicas.http.get("/metrics")).text
        assert f'failovers_total{{outcome="continued",stage="{role}"}} 1.0' in text
        assert 'antiphon_gateway_memory_bytes{holder="answering"} 0.0' in text


@pytest.mark.parametrize("role", ROLES)
async def test_an_answer_goes_on_when_a_process_dies(role: str) -> None:
    """With all its connections, while its neighbours complain of it."""

    async def echo(session: Session) -> None:
        await USUAL[session.role](session) if died.is_set() else await begin(session)
        if not died.is_set():
            await died.wait()
            await session.error(Unavailable("the link has broken", edge="codes"))

    async def last(session: Session) -> None:
        if died.is_set():
            await USUAL[role](session)
            return
        await begin(session)
        await asyncio.Event().wait()

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for each in ROLES:
            for fake in fakes[each]:
                fake.script = last if each == role else echo

    died = asyncio.Event()
    async with open_replicas(**dict.fromkeys(ROLES, 2), prepare=prepare) as replicas:
        killing: list[asyncio.Task[None]] = []

        def kill(events: list[Event]) -> None:
            if not killing and len(events) > 2:
                used = replicas.sessions(role).index(1)
                killing.append(asyncio.create_task(replicas.fakes[role][used].die()))
                killing[0].add_done_callback(lambda _: died.set())

        check_whole(await answered(replicas, kill))
        assert replicas.sessions(role) == [1, 1]


@pytest.mark.parametrize("role", ROLES)
async def test_an_answer_goes_on_when_the_only_replica_is_back_in_time(role: str) -> None:
    async def hang(session: Session) -> None:
        await begin(session)
        await asyncio.Event().wait()

    async def again(fake: FakeStage) -> None:
        await fake.die()
        fake.script = USUAL[role]
        # There is nobody to whom the answer could be carried.
        while replicas.gateway.fleet.fault() is None:
            await replicas.gateway.fleet.wait_changed()
        await asyncio.sleep(0.1)
        await fake.start()

    waits = {"failover_return_s": GENEROUS_S, "failover_wait_s": BRIEF_S}
    async with open_replicas(prepare=failing(role, hang), **waits) as replicas:
        restarting: list[asyncio.Task[None]] = []

        def restart(events: list[Event]) -> None:
            if not restarting and told_by(role, events):
                restarting.append(asyncio.create_task(again(replicas.fakes[role][0])))

        check_whole(await answered(replicas, restart))
        assert replicas.sessions(role) == [2]


@pytest.mark.parametrize(
    "status",
    [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED],
)
@pytest.mark.parametrize("role", ROLES)
async def test_an_answer_goes_on_when_the_connection_is_garbled(
    role: str, status: grpc.StatusCode
) -> None:
    """gRPC ends the call with a status of its own, which no stage has said."""
    garbled = asyncio.Event()

    async def script(session: Session) -> None:
        if garbled.is_set():
            await USUAL[role](session)
            return
        garbled.set()
        await begin(session)
        await session.end(status, "Failed parsing HTTP/2")

    async with open_replicas(**dict.fromkeys(ROLES, 2), prepare=failing(role, script)) as replicas:
        check_whole(await answered(replicas))
        assert sum(replicas.sessions(role)) == 2


@pytest.mark.parametrize("role", ROLES)
async def test_an_answer_goes_on_when_what_a_stage_says_comes_damaged(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged: list[bytes] = []
    whole = checksum.to_field

    def written(message: Message) -> bytes:
        data = whole(message)
        if damaged or not isinstance(message, session_pb2.SessionResponse):
            return data
        if message.WhichOneof("message") != said[role]:
            return data
        damaged.append(data)
        return bytes([data[0] ^ 1]) + data[1:]

    said = {THINKER: "chunk", TALKER: "report", CODE2WAV: "chunk"}
    monkeypatch.setattr(checksum, "to_field", written)
    async with open_replicas(**dict.fromkeys(ROLES, 2)) as replicas:
        check_whole(await answered(replicas))
        assert damaged
        assert sum(replicas.sessions(role)) == 2


async def test_an_answer_goes_on_as_often_as_it_may() -> None:
    script = Failing(THINKER, times=4)
    script.now.set()
    async with open_replicas(thinker=6, prepare=failing(THINKER, script), failovers=4) as replicas:
        check_whole(await answered(replicas))
        assert sum(replicas.sessions()) == 5
    script = Failing(THINKER, times=5)
    script.now.set()
    async with open_replicas(thinker=6, prepare=failing(THINKER, script), failovers=4) as replicas:
        with pytest.raises(Unavailable, match="the engine is gone"):
            await answered(replicas)


@pytest.mark.parametrize("role", ROLES)
async def test_an_answer_fails_by_type_when_the_only_replica_is_not_back_in_time(role: str) -> None:
    killing: list[asyncio.Task[None]] = []

    async def hang(session: Session) -> None:
        await begin(session)
        await asyncio.Event().wait()

    async with open_replicas(prepare=failing(role, hang), failover_return_s=0.2) as replicas:

        def kill(events: list[Event]) -> None:
            if not killing and told_by(role, events):
                killing.append(asyncio.create_task(replicas.fakes[role][0].die()))

        with pytest.raises(Unavailable) as told:
            await answered(replicas, kill)
        assert told.value.stage == role
        assert replicas.sessions(role) == [1]
        text = (await replicas.http.get("/metrics")).text
        assert f'failovers_total{{outcome="failed",stage="{role}"}} 1.0' in text


async def test_an_answer_fails_by_type_where_it_cannot_go_on() -> None:
    script = Failing(THINKER)
    script.now.set()
    async with open_replicas(thinker=2, prepare=failing(THINKER, script), failovers=0) as replicas:
        answer = await replicas.chat(**SPOKEN)
        assert answer.status_code == 503
        assert "the engine is gone" in answer.json()["error"]["message"]
        assert sum(replicas.sessions()) == 1
        assert (await replicas.chat(**SPOKEN)).status_code == 200


@pytest.mark.parametrize("failovers", [0, 1])
async def test_requests_are_kept_only_where_their_answers_may_be_continued(failovers: int) -> None:
    async with open_replicas(failovers=failovers) as replicas:

        async def nothing_is_kept() -> bool:
            return not replicas.gateway.calls.memory.held_bytes

        # A request is kept by the time its segment can be iterated.
        async with asyncio.timeout(120), replicas.gateway.calls.answer(ORDER) as segment:
            assert await nothing_is_kept() is (failovers == 0)
            check_whole([event async for event in segment])
        assert await nothing_is_kept()


async def test_no_more_answers_are_continued_in_a_minute_than_may_be() -> None:
    script = Failing(THINKER)
    script.now.set()
    async with open_replicas(
        thinker=3, prepare=failing(THINKER, script), failovers_per_minute=1, eject_failures=1000
    ) as replicas:
        assert (await replicas.chat()).status_code == 200
        script.left = 1
        assert (await replicas.chat()).status_code == 503


async def test_a_fault_of_the_stage_is_not_carried_to_the_next_one() -> None:
    """What the request itself has brought about would harm every replica."""
    script = Failing(THINKER, Internal("the engine raised"))
    script.now.set()
    async with open_replicas(thinker=2, prepare=failing(THINKER, script)) as replicas:
        assert (await replicas.chat()).status_code == 500
        assert sum(replicas.sessions()) == 1


async def test_an_answer_of_which_another_one_is_made_fails_by_type() -> None:
    async def otherwise(session: Session) -> None:
        await session.opened()
        await session.text("Goodbye", FinishReason.STOP)
        await session.report()

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for fake in fakes[THINKER]:
            fake.script = script

    first = Failing(THINKER)

    async def script(session: Session) -> None:
        await (first if first.left else otherwise)(session)

    async with open_replicas(thinker=2, prepare=prepare) as replicas:
        with pytest.raises(Unavailable, match="different"):
            await answered(replicas, lambda events: first.now.set())


async def test_an_answer_waits_for_a_slot_of_the_replica_that_is_left() -> None:
    full = 2
    script = Failing(THINKER)

    async def scarce(session: Session) -> None:
        nonlocal full
        if script.left or not full:
            await script(session)
            return
        full -= 1
        await session.error(ResourceExhausted("all slots are taken", retry_after_s=1.0))

    waits = {"failover_wait_s": 600.0, "failover_return_s": BRIEF_S}
    async with open_replicas(
        thinker=2, prepare=failing(THINKER, scarce), eject_failures=1000, **waits
    ) as replicas:
        check_whole(await answered(replicas, lambda events: script.now.set()))
        assert not full


async def test_several_choices_go_on_each_for_itself() -> None:
    script = Failing(THINKER, times=2)
    script.now.set()
    async with open_replicas(thinker=4, prepare=failing(THINKER, script)) as replicas:
        answer = await replicas.chat(n=3)
        texts = [each["message"]["content"] for each in answer.json()["choices"]]
        assert texts == ["".join(TEXTS)] * 3
        assert sum(replicas.sessions()) == 5
        opened = [each.segment for fake in replicas.fakes[THINKER] for each in fake.sessions]
        assert len({each.sampling[THINKER].seed for each in opened}) == 1
        # The two sessions that were lost may belong to any two of the choices.
        sessions = Counter(each.choice for each in opened)
        assert sorted(sessions) == [0, 1, 2]
        assert sorted(sessions.values()) == [1, 2, 2]


async def test_a_conversation_goes_on_in_the_middle_of_a_turn_and_stays_where_it_is_then() -> None:
    script = Failing(THINKER)

    async def turns(session: Session) -> None:
        await script(session)
        while True:
            await session.next_segment()
            await think(session)

    order = Order(messages=ORDER.messages, outputs=frozenset({"text"}))
    async with open_replicas(thinker=2, prepare=failing(THINKER, turns)) as replicas:
        conversation = ConversationSession(replicas.gateway.calls, listen_idle_s=600.0)
        for _ in range(2):
            texts = []
            async with conversation.turn(order, lambda place: None) as segment:
                async for event in segment:
                    script.now.set()
                    texts += [event.text] if isinstance(event, TextProduced) else []
            assert "".join(texts) == "".join(TEXTS)
        assert replicas.sessions() == [1, 1]
        await conversation.close()


async def test_an_answer_that_is_cancelled_while_it_is_continued_ends_as_cancelled() -> None:
    script = Failing(THINKER)
    asked_again = asyncio.Event()

    async def hesitate(session: Session) -> None:
        if script.left:
            await script(session)
            return
        asked_again.set()
        await session.opened()
        await session.cancelled_segment()
        await session.report(FinishReason.CANCELLED)

    order = Order(messages=ORDER.messages, outputs=frozenset({"text"}))
    async with open_replicas(thinker=2, prepare=failing(THINKER, hesitate)) as replicas:
        async with asyncio.timeout(120), replicas.gateway.calls.answer(order) as segment:
            await anext(segment)
            script.now.set()
            going_on = asyncio.create_task(anext(segment))
            await going_on
            rest = asyncio.create_task(anext(segment))
            await asked_again.wait()
            segment.cancel()
            last = await rest
        assert isinstance(last, SegmentFinished)
        assert last.finish_reason is FinishReason.CANCELLED
