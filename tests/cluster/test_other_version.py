"""Two versions together: a fleet moves from another checkout to this one and back, under load.

Runs only if the environment variable OTHER_CHECKOUT is the root of a checkout of the other version.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.bell_fleet import (
    COMPOSER,
    GATEWAY,
    MODEL,
    RINGER,
    ROOT,
    BellFleet,
    bell_fleet,
)
from tests.cluster.steady_load import SteadyLoad, steady_load

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

ANSWERS = 20
"""Answers between two moves, of at least 100 in all."""


@pytest.fixture
def other() -> Path:
    """The root of the other checkout."""
    if not (given := os.environ.get("OTHER_CHECKOUT")):
        pytest.skip("needs OTHER_CHECKOUT, the root of another version")
    root = Path(given).resolve()
    assert (root / "gateway" / "antiphon_gateway").is_dir(), f"{root} is no checkout"
    assert root != ROOT
    return root


@pytest.mark.asyncio
async def test_no_answer_is_lost_or_different_while_versions_are_mixed(
    other: Path, tmp_path: Path
) -> None:
    async with (
        bell_fleet(tmp_path, checkout=other, composer=2, ringer=2) as fleet,
        steady_load(fleet.http_address, fleet.grpc_address, 2, MODEL) as load,
    ):
        await load.wait_answers(ANSWERS)
        # The gateway first: its version is the newer one, then that of the stages.
        for name in (GATEWAY, COMPOSER, RINGER):
            await _move(fleet, load, name, ROOT)
        # The stages first: the gateway's version is the newer one, then the older.
        for name in (RINGER, COMPOSER, GATEWAY):
            await _move(fleet, load, name, other)
    assert load.failures == []
    assert load.answers >= 100
    assert len(load.heard) == 1, "all answers are the same"
    happened = [what for _, what in fleet.cluster.story]
    assert "SIGKILL" not in happened
    assert not [what for what in happened if what.startswith("died")]


async def _move(fleet: BellFleet, load: SteadyLoad, name: str, checkout: Path) -> None:
    await fleet.move(name, checkout)
    await load.wait_answers(ANSWERS)
    assert load.failures == [], f"{name} runs {checkout}"
