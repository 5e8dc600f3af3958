"""What the gateway makes of a stage's health: odd states, and a stage that stops answering."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.values.segment import FinishReason
from antiphon_gateway.fleet import replica, replica_watch
from antiphon_gateway.fleet.cpu_pressure import CpuPressure
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.fleet.replica_watch import ReplicaWatch
from tests.contract.fake_stages import (
    CODE2WAV,
    TALKER,
    THINKER,
    FakeStage,
    Session,
    describe,
    stall,
    think,
)
from tests.contract.served_gateway import SPOKEN, deployment_of, serve_gateway
from tests.contract.slotted_stages import waiting_requests

pytestmark = pytest.mark.asyncio(loop_scope="session")

GENEROUS_S = 240.0
UNKNOWN_STATUS = 99


@pytest.fixture
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage's silence counts in full, as where no thread waits for a core."""
    monkeypatch.setattr(CpuPressure, "share", lambda pressure: 0.0)


async def test_a_stage_in_an_unknown_state_is_down_and_watched_further() -> None:
    async with asyncio.timeout(GENEROUS_S), serve_gateway() as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        await served.fakes[TALKER].health.set("", UNKNOWN_STATUS)
        assert not await anext(ready)
        health = await served.http.get("/health")
        assert health.status_code == 503
        assert str(UNKNOWN_STATUS) in health.json()["stages"][TALKER]["reason"]
        await served.fakes[TALKER].set_serving(True)
        assert await anext(ready)
        await ready.aclose()


async def test_a_running_call_goes_on_when_its_stage_says_that_it_serves_no_more() -> None:
    """As it does while it drains."""
    go_on, speaking = asyncio.Event(), asyncio.Event()

    async def speak(session: Session) -> None:
        speaking.set()
        await go_on.wait()
        await usual(session)

    async with (
        asyncio.timeout(GENEROUS_S),
        serve_gateway(failover_return_s=2 * GENEROUS_S) as served,
    ):
        usual = served.fakes[THINKER].script
        served.fakes[THINKER].script = speak
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        asking = asyncio.create_task(served.chat())
        await speaking.wait()
        await served.fakes[THINKER].set_serving(False)
        assert not await anext(ready)
        assert (await served.chat()).status_code == 503
        go_on.set()
        assert (await asking).status_code == 200
        await ready.aclose()


async def test_a_stage_that_stops_answering_is_down_and_its_calls_end_until_it_answers(
    idle_machine: None,
) -> None:
    """Its connection, its health stream and its sessions are as good as ever."""
    async with asyncio.timeout(GENEROUS_S), serve_gateway(probe_timeout_s=1.5) as served:
        for role in (THINKER, TALKER, CODE2WAV):
            served.fakes[role].script = stall
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        asking = asyncio.create_task(served.chat(**SPOKEN))
        served.fakes[CODE2WAV].health.answering.clear()
        assert not await anext(ready)
        refused = await served.chat(**SPOKEN)
        assert refused.status_code == 503
        assert "did not respond to a health check" in refused.text
        ended = await asking
        assert ended.status_code == 503
        error = json.loads(ended.text)["error"]
        assert error["code"] == "unavailable"
        assert f"the stage {CODE2WAV} at" in error["message"]
        assert "was lost" in error["message"]
        served.fakes.reset()
        assert (await served.chat()).status_code == 200, "text needs no code2wav"
        served.fakes[CODE2WAV].health.answering.set()
        assert await anext(ready)
        assert (await served.chat(**SPOKEN)).status_code == 200
        await ready.aclose()


async def test_a_call_goes_on_when_its_stage_misses_a_probe_now_and_then(
    idle_machine: None,
) -> None:
    go_on, speaking = asyncio.Event(), asyncio.Event()

    async def speak(session: Session) -> None:
        speaking.set()
        await go_on.wait()
        await usual(session)

    async with asyncio.timeout(GENEROUS_S), serve_gateway(probe_timeout_s=1.5) as served:
        usual = served.fakes[THINKER].script
        served.fakes[THINKER].script = speak
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        asking = asyncio.create_task(served.chat())
        await speaking.wait()
        for _ in range(2):
            served.fakes[THINKER].health.answering.clear()
            assert not await anext(ready)
            served.fakes[THINKER].health.answering.set()
            assert await anext(ready)
        go_on.set()
        assert (await asking).status_code == 200
        await ready.aclose()


async def test_a_running_call_goes_on_while_its_stage_sends_and_answers_no_probe(
    idle_machine: None,
) -> None:
    """As a stage does whose event loop is kept from its core: it is slow, and alive."""
    timeout_s, texts = 0.3, 0
    sent_long = asyncio.Event()

    async def speak(session: Session) -> None:
        nonlocal texts
        await session.opened()
        served.fakes[THINKER].health.answering.clear()
        until = asyncio.get_running_loop().time() + 8 * timeout_s
        while asyncio.get_running_loop().time() < until:
            await session.text("a")
            texts += 1
            await asyncio.sleep(timeout_s / 10)
        sent_long.set()
        await session.chunk("text", finish=FinishReason.STOP)
        await session.report(input_positions=20, output_positions=texts)

    async with asyncio.timeout(GENEROUS_S), serve_gateway(probe_timeout_s=timeout_s) as served:
        served.fakes[THINKER].script = speak
        answer = await served.chat()
        assert sent_long.is_set()
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "a" * texts
        # Silence is told from that: now it neither sends nor answers.
        ready = served.gateway.fleet.readiness()
        while await anext(ready):
            pass
        await ready.aclose()


async def test_a_gateway_that_stands_still_for_longer_than_a_probe_may_take_loses_no_stage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All share this loop: so does the stage that answers the probe when its time has run out."""
    probes, asked_again = 0, asyncio.Event()

    async def stand_still() -> bool:
        nonlocal probes
        probes += 1
        if probes <= 3:
            time.sleep(3 * timeout_s)  # noqa: ASYNC251 - that is the fault
        else:
            asked_again.set()
        return True

    timeout_s = 0.5
    async with asyncio.timeout(GENEROUS_S), serve_gateway(probe_timeout_s=timeout_s) as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        answering = served.fakes[THINKER].health.answering
        with patch.object(answering, "wait", stand_still), caplog.at_level(logging.INFO):
            await asked_again.wait()
        assert "the event loop was" in caplog.text
        assert "is down" not in caplog.text
        await ready.aclose()


async def test_a_gateway_whose_loop_is_late_at_every_turn_loses_no_stage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each turn takes less than the timeout, a probe many of them."""
    timeout_s, late_s = 0.5, 0.3
    answered = 0

    async def be_starved() -> None:
        while answered < 3:
            time.sleep(late_s)  # noqa: ASYNC251 - that is the fault
            await asyncio.sleep(0)

    async def answer() -> bool:
        nonlocal answered
        for _ in range(4):
            await asyncio.sleep(0)
        answered += 1
        return True

    async with asyncio.timeout(2 * GENEROUS_S), serve_gateway(probe_timeout_s=timeout_s) as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        answering = served.fakes[THINKER].health.answering
        with patch.object(answering, "wait", answer), caplog.at_level(logging.INFO):
            await be_starved()
        assert "is down" not in caplog.text
        await ready.aclose()


async def test_a_probe_that_ended_otherwise_says_how() -> None:
    """Not that its time has run out; and another one is not sent at once."""
    interval_s, again = 0.3, asyncio.Event()
    broken_at: list[float] = []

    async def break_off() -> bool:
        broken_at.append(asyncio.get_running_loop().time())
        if len(broken_at) > 1:
            again.set()
        raise ConnectionError("the line broke")

    async with (
        asyncio.timeout(GENEROUS_S),
        serve_gateway(probe_timeout_s=GENEROUS_S, probe_interval_s=interval_s) as served,
    ):
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        with patch.object(served.fakes[THINKER].health.answering, "wait", break_off):
            assert not await anext(ready)
            (thinker,) = served.gateway.fleet[THINKER]
            assert "the line broke" in thinker.reason
            assert "within" not in thinker.reason
            await again.wait()
        assert broken_at[1] - broken_at[0] > interval_s / 2
        assert await anext(ready)
        await ready.aclose()


async def test_a_stage_whose_health_stream_has_ended_is_probed_no_more() -> None:
    def probing() -> set[asyncio.Task[Any]]:
        """That stage alone: all tests share their loop."""
        return {task for task in asyncio.all_tasks() if probes(task.get_coro())}

    def probes(coroutine: Any) -> bool:
        if coroutine.__qualname__ != "ReplicaWatch._probe":
            return False
        return coroutine.cr_frame.f_locals["self"]._replica is stage

    async with asyncio.timeout(GENEROUS_S), serve_gateway(probe_timeout_s=GENEROUS_S) as served:
        (stage,) = served.gateway.fleet[CODE2WAV]
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        (before,) = probing()
        await served.fakes[CODE2WAV].die()
        assert not await anext(ready)
        assert before not in probing()
        # Of the stream that waits for the stage to be back.
        assert len(probing()) <= 1
        await ready.aclose()


async def test_a_request_waits_for_a_stage_that_was_just_lost() -> None:
    waits = {"failover_return_s": 2 * GENEROUS_S}
    async with asyncio.timeout(GENEROUS_S), serve_gateway(**waits) as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        await served.fakes[TALKER].die()
        assert not await anext(ready)
        asking = asyncio.create_task(served.chat(**SPOKEN))
        assert (await served.chat()).status_code == 200, "text needs no talker"
        await served.fakes[TALKER].start()
        assert (await asking).status_code == 200
        await ready.aclose()


async def test_a_request_in_the_queue_waits_for_a_stage_that_was_lost_meanwhile() -> None:
    go_on, speaking = asyncio.Event(), asyncio.Event()

    async def speak(session: Session) -> None:
        speaking.set()
        await go_on.wait()
        await usual(session)

    settings = {"failover_return_s": 2 * GENEROUS_S, "max_calls": 1, "max_waiting": 1}
    async with asyncio.timeout(GENEROUS_S), serve_gateway(**settings) as served:
        usual = served.fakes[THINKER].script
        served.fakes[THINKER].script = speak
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        first = asyncio.create_task(served.chat())
        await speaking.wait()
        with waiting_requests() as waiting:
            second = asyncio.create_task(served.chat(**SPOKEN))
            await waiting.until(1)
        await served.fakes[TALKER].die()
        assert not await anext(ready)
        served.fakes[THINKER].script = usual
        go_on.set()
        assert (await first).status_code == 200
        await served.fakes[TALKER].start()
        assert (await second).status_code == 200
        await ready.aclose()


async def test_a_stage_is_watched_further_when_its_connection_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a stream does that is not continued in time; the calls of the old connection end."""
    monkeypatch.setattr(replica, "CLOSING_S", 0.0)
    async with asyncio.timeout(GENEROUS_S), serve_gateway() as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        (talker,) = served.gateway.fleet[TALKER]
        talker.open_anew()
        for serving in (False, True):
            await served.fakes[TALKER].set_serving(serving)
            assert await anext(ready) == serving
        await ready.aclose()


async def test_a_health_stream_that_is_silent_is_opened_anew() -> None:
    """Its first message was lost on the way, and the connection stands."""
    async with asyncio.timeout(GENEROUS_S), serve_gateway(probe_interval_s=0.05) as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        fake = served.fakes[TALKER]
        await fake.die()
        assert not await anext(ready)
        await fake.start(silent=1)
        assert await anext(ready)
        assert not fake.health.silent
        await ready.aclose()


async def test_a_health_stream_that_says_otherwise_than_probes_is_opened_anew() -> None:
    """A change of what it said was lost on the way."""
    async with asyncio.timeout(GENEROUS_S), serve_gateway(probe_interval_s=0.05) as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        for serving in (False, True):
            served.fakes[TALKER].health.change_unheard(serving)
            while await anext(ready) != serving:
                pass
        assert (await served.chat(**SPOKEN)).status_code == 200
        await ready.aclose()


async def test_a_stage_that_tells_its_load_no_more_is_asked_anew() -> None:
    """What it told got lost on the way, as all does after it."""
    with patch.object(replica_watch, "LOAD_SILENT_S", 0.2):
        async with asyncio.timeout(GENEROUS_S), serve_gateway() as served:
            (talker,) = served.gateway.fleet[TALKER]
            served.fakes[TALKER].tell_load(open_segments=1)
            while not talker.busy:
                await served.gateway.fleet.wait_changed()
            served.fakes[TALKER].load.draining = True
            while not talker.draining:
                await served.gateway.fleet.wait_changed()


async def test_a_connection_that_answers_no_probes_is_opened_anew(
    idle_machine: None,
) -> None:
    """Whoever comes by another one is answered."""
    async with asyncio.timeout(GENEROUS_S), serve_gateway(probe_timeout_s=0.5) as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        served.fakes[TALKER].health.deaf_to_known = True
        assert not await anext(ready)
        assert await anext(ready)
        assert (await served.chat(**SPOKEN)).status_code == 200
        await ready.aclose()


async def test_a_stage_is_watched_further_when_what_follows_of_a_change_fails() -> None:
    fake = FakeStage(THINKER, think, describe(THINKER))
    await fake.start()
    told: asyncio.Queue[tuple[bool, bool]] = asyncio.Queue()

    def fail(replica: Replica) -> None:
        told.put_nowait((replica.ready, replica.draining))
        raise RuntimeError("internal error")

    place = Endpoint(role=THINKER, uid="a", address=fake.address)
    config = deployment_of().gateway
    replica = Replica(place, config, fail)
    watching = asyncio.create_task(ReplicaWatch(replica, config).run())

    async def until(*state: bool) -> None:
        while await told.get() != state:
            pass

    async with asyncio.timeout(GENEROUS_S):
        await until(True, False)
        fake.tell_load(draining=True)
        await until(True, True)
        await fake.set_serving(False)
        await until(False, True)
        await fake.set_serving(True)
        await until(True, True)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await replica.channel.close()
    await fake.die()
