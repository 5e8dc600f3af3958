"""Rounds of `make chaos`, always the same ones, on one fleet of real processes."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
import pytest_asyncio
from warm_services import WarmLauncher

from tools.chaos.faults import NAMES
from tools.chaos.fleet import TargetFleet, running_fleet
from tools.chaos.listener import AnswerListener
from tools.chaos.rounds import Round, Rounds

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

SPEED = 8.0
CONTINUED = re.compile(r'failovers_total\{outcome="continued",stage="\w+"\} (\S+)')


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(talkative: Path) -> AsyncIterator[TargetFleet]:
    async with running_fleet(talkative, 2, WarmLauncher) as running:
        yield running


def continued(fleet: TargetFleet) -> float:
    """Answers that went on elsewhere."""
    with urllib.request.urlopen(f"{fleet.running.http_url}/metrics", timeout=60) as page:
        return sum(map(float, CONTINUED.findall(page.read().decode())))


async def run(
    fleet: TargetFleet,
    count: int,
    *,
    seed: int,
    faults: Collection[str] = NAMES,
    roles: Collection[str] = (),
) -> list[Round]:
    """So many rounds; each raises what does not hold in it."""
    done: list[Round] = []
    async with AnswerListener(fleet.running.grpc_address, speed=SPEED) as listener:
        rounds = Rounds(fleet, listener, seed=seed, listeners=4, faults=faults, roles=roles)
        await rounds.learn()
        async for each in rounds.run():
            done.append(each)
            if len(done) == count:
                break
    return done


async def test_answers_go_on_when_any_stage_is_killed(fleet: TargetFleet) -> None:
    for seed, role in enumerate(("thinker", "talker", "code2wav")):
        before = continued(fleet)
        await run(fleet, 1, seed=seed, faults={"kill"}, roles={role})
        assert continued(fleet) > before, "nobody was answered by the one that was killed"


async def test_answers_go_on_whatever_happens_to_a_stage(fleet: TargetFleet) -> None:
    assert len(await run(fleet, 3, seed=5, faults={"freeze", "slow", "descriptors"})) == 3


async def test_answers_go_on_when_the_gateway_was_killed(fleet: TargetFleet) -> None:
    (done,) = await run(fleet, 1, seed=0, faults={"gateway"})
    assert any(each.resumed for each in done.heard), "nobody listened when it was killed"
