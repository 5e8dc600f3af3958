"""A stage that is frozen, hangs or dies under a running call: a typed error, 503, and recovery.

The stage is code2wav, with the real thinker, talker and gateway as processes beside it. How
long each took is printed (`-s` shows it).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import Unavailable
from antiphon_testkit.flat_settings import stage_config
from antiphon_tools.warm.launcher import WarmLauncher, shared_fork_server
from tests.integration.stoppable_deployment import (
    DEAD,
    FAILURES,
    FROZEN,
    HUNG_ENGINE,
    HUNG_INTERPRETER,
    POISONED,
    ROLE,
    deployment_with,
    fail,
)

pytestmark = [pytest.mark.processes, pytest.mark.asyncio]

# What the error says of each, and the report of `/health`: one of these. A frozen stage misses
# a probe sooner than a ping, unless the machine is busy. Then, the stream of its sessions may be
# given up first.
UNANSWERED = "timed out before receiving SETTINGS frame"
"""Said of a process that is frozen when its connection is replaced."""
TOLD = {
    FROZEN.name: (("was lost",), ("ping timeout", "health check", UNANSWERED)),
    HUNG_INTERPRETER.name: (
        ("2 times in a row", "did not continue its sessions"),
        ("health check",),
    ),
    HUNG_ENGINE.name: (("step_timeout_s",), ("NOT_SERVING",)),
    POISONED.name: (("can't continue",), ("",)),
    DEAD.name: (("was lost",), ("",)),
}


def warm() -> dict[str, Any]:
    return {"launcher": WarmLauncher, "fork_server": shared_fork_server()}


async def test_frozen_hung_and_dead_stage_end_calls_are_told_and_recover(
    talkative: Path, tmp_path: Path
) -> None:
    config = stage_config(step_timeout_s=2.0)
    async with deployment_with(tmp_path, talkative, config, **warm()) as (running, stage):
        for failure in FAILURES:
            outcome = await fail(running, stage, failure)
            print(
                f"{failure.name}: call ended after {outcome.error_s:.2f} s, /health was 503 "
                f"after {outcome.down_s:.2f} s, 200 {outcome.back_s:.2f} s after its recovery"
            )
            errors, reasons = TOLD[failure.name]
            assert isinstance(outcome.error, Unavailable), failure.name
            assert outcome.error.stage == ROLE
            message = outcome.error.message
            assert [each for each in errors if each in message], (failure.name, message)
            assert ROLE in outcome.health["reason"]
            assert not outcome.health["stages"][ROLE]["ready"]
            told = outcome.health["stages"][ROLE]["reason"]
            assert [reason for reason in reasons if reason in told], (failure.name, told)


async def test_frozen_stage_is_noticed_without_probes(talkative: Path, tmp_path: Path) -> None:
    patient_s = 3600.0
    async with deployment_with(
        tmp_path, talkative, StageConfig(), probe_timeout_s=patient_s, **warm()
    ) as (running, stage):
        outcome = await fail(running, stage, FROZEN)
    assert isinstance(outcome.error, Unavailable)
    assert "was lost" in outcome.error.message
    reason = outcome.health["stages"][ROLE]["reason"]
    assert "ping timeout" in reason or UNANSWERED in reason
