"""How long a request waits for a stage that has just been lost."""

from __future__ import annotations

import time
from typing import Any

import pytest

from antiphon.errors import Unavailable
from antiphon_gateway.changes import ChangeSignal
from antiphon_gateway.failover.awaited_return import awaited_return

MOST_S = 0.02


class FlappingFleet:
    """A fleet whose stage is always lost just now."""

    def __init__(self) -> None:
        self.changes = ChangeSignal()

    def lost_at(self, role: str) -> float:
        return time.monotonic()


async def test_wait_is_bounded_although_the_stage_is_lost_again_and_again() -> None:
    fleet: Any = FlappingFleet()
    waited_since = time.monotonic()
    is_patient = False

    def find() -> None:
        nonlocal is_patient
        # The second call after the time is up is one too many.
        assert not is_patient
        is_patient = time.monotonic() - waited_since > MOST_S
        raise Unavailable("no replica", stage="talker")

    with pytest.raises(Unavailable, match="no replica"):
        await awaited_return(fleet, find, MOST_S)
