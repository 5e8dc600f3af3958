"""Rounds of `make chaos`, always the same ones, on one fleet of real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.client.retrying import Retry
from antiphon_testkit.flat_settings import stage_config
from antiphon_tools.chaos.carriers import carriers_of
from antiphon_tools.chaos.conversing import KnownTalk
from antiphon_tools.chaos.faults import OF_STAGES
from antiphon_tools.chaos.fleet import TargetFleet, running_fleet
from antiphon_tools.chaos.kills import Kill, Kills
from antiphon_tools.chaos.listener import AnswerListener
from antiphon_tools.chaos.report import as_json
from antiphon_tools.chaos.rounds import Round, Rounds
from antiphon_tools.launcher.plan import GATEWAY
from antiphon_tools.warm.launcher import WarmLauncher

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

SPEED = 8.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(
    talkative: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TargetFleet]:
    directory = tmp_path_factory.mktemp("chaos")
    async with running_fleet(talkative, 2, directory, WarmLauncher) as running:
        yield running


async def run(
    fleet: TargetFleet,
    count: int,
    *,
    seed: int,
    faults: Collection[str],
) -> list[Round]:
    """So many rounds; each raises what does not hold in it."""
    done: list[Round] = []
    async with AnswerListener(fleet.running.grpc_address, speed=SPEED) as listener:
        rounds = Rounds(fleet, listener, seed=seed, listeners=4, faults=faults)
        await rounds.learn()
        async for each in rounds.run():
            done.append(each)
            if len(done) == count:
                break
    return done


async def test_each_kill_hits_the_replica_that_makes_the_answer(fleet: TargetFleet) -> None:
    async with (
        AnswerListener(fleet.running.grpc_address, speed=SPEED) as listener,
        carriers_of(fleet) as carriers,
    ):
        kills = Kills(fleet, listener, carriers, seed=2)
        await kills.learn()
        done: list[Kill] = []
        async for each in kills.run():
            done.append(each)
            if len(done) == 3:
                break
    assert [each.stage for each in done] == ["thinker", "talker", "code2wav"]
    assert all(each.completed and not each.found for each in done), done
    assert any(each.continued for each in done), "all were killed before there was anything to hear"
    told = json.loads(as_json(done, kills.missed, {}))["stages"]
    assert all(each["equal"] == each["kills"] == 1 for each in told.values())


async def test_answers_go_on_whatever_happens_to_a_stage(fleet: TargetFleet) -> None:
    done = await run(fleet, len(OF_STAGES), seed=5, faults=OF_STAGES)
    assert {each.fault.name for each in done} == OF_STAGES.keys()


async def test_answers_go_on_when_the_gateway_was_killed(fleet: TargetFleet) -> None:
    (done,) = await run(fleet, 1, seed=0, faults={"gateway"})
    assert any(each.resumed for each in done.heard), "nobody listened when it was killed"


async def test_conversations_go_on_when_the_gateway_was_killed(fleet: TargetFleet) -> None:
    talk = KnownTalk(("Who are you?", "Count to ten."), max_text=16, max_frames=20)
    async with AnswerListener(fleet.running.grpc_address, speed=SPEED) as listener:
        expected = await listener.converse(talk)
        assert [each.error for each in expected] == [None, None]
        begun = asyncio.Event()
        talking = asyncio.create_task(listener.converse(talk, lambda seconds: begun.set()))
        await begun.wait()
        os.kill(fleet.pid(GATEWAY), signal.SIGKILL)
        turns = await talking
    for heard, undisturbed in zip(turns, expected, strict=True):
        assert heard.error is None
        assert heard.difference(undisturbed) == ""
    assert any(each.resumed for each in turns)
    await fleet.recovered(GATEWAY)


async def test_with_one_replica_a_kill_is_an_error_and_the_next_answer_is_whole(
    talkative: Path, tmp_path: Path
) -> None:
    # A replica is back in about a second: an answer that waits for it may become whole.
    settings = {"max_stage_ahead_positions": 4, "failover_return_s": 0.05}
    stage = stage_config(resume_window_s=0.05)
    async with (
        running_fleet(talkative, 1, tmp_path, WarmLauncher, stage=stage, **settings) as fleet,
        AnswerListener(
            fleet.running.grpc_address, speed=SPEED, retry=Retry(attempts=1)
        ) as listener,
        carriers_of(fleet) as carriers,
    ):
        kills = Kills(fleet, listener, carriers, seed=2, roles=["talker"])
        await kills.learn()
        done = await anext(kills.run())
    assert done.error.startswith("UNAVAILABLE"), done
    assert not done.found
    assert done.back_after_s > 0
