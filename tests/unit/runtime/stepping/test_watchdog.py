"""The watch on the engine's steps: when it looks, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.errors import AntiphonError
from antiphon.runtime.stepping.watchdog import Watchdog

LONG_S = 1000.0


class Looks:
    """The timers of a watchdog, and what it has told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> None:
        self.timers: list[asyncio.TimerHandle] = []
        self.delays: list[float] = []
        self.told: list[AntiphonError | None] = []
        self.has_work = True
        self._look: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def recorded(
            delay: float, callback: Callable[[], None], *rest: Any, **more: Any
        ) -> asyncio.TimerHandle:
            self._look = callback
            self.delays.append(delay)
            self.timers.append(call_later(delay, callback, *rest, **more))
            return self.timers[-1]

        monkeypatch.setattr(loop, "call_later", recorded)
        self.watchdog = Watchdog(timeout_s, self.told.append, lambda: self.has_work)

    def look(self) -> None:
        """As if the latest timer's time had come."""
        self.timers[-1].cancel()
        self._look()


async def test_next_look_is_when_the_step_that_goes_on_has_had_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch, LONG_S)
    pulse = looks.watchdog.pulse()
    looks.watchdog.engage()
    looks.watchdog.engage()
    assert len(looks.timers) == 1
    pulse.begin()
    looks.look()
    first, second = looks.delays
    assert second < first == LONG_S
    assert looks.told == []
    looks.watchdog.close()


async def test_late_step_is_told_once_and_once_more_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch, 0.0)
    late, other = looks.watchdog.pulse(), looks.watchdog.pulse()
    looks.watchdog.engage()
    late.begin()
    looks.look()
    assert [type(each).__name__ for each in looks.told] == ["Unavailable"]
    looks.watchdog.engage()
    looks.look()
    other.begin()
    other.end()
    await asyncio.sleep(0)
    assert len(looks.told) == 1, "what is late is still at it"
    late.end()
    await asyncio.sleep(0)
    assert looks.told[1:] == [None]
    looks.watchdog.close()


async def test_engine_at_rest_is_looked_at_no_more_and_a_closed_watch_hears_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch, LONG_S)
    pulse = looks.watchdog.pulse()
    looks.watchdog.engage()
    looks.has_work = False
    looks.look()
    assert len(looks.timers) == 1
    looks.watchdog.engage()
    looks.watchdog.close()
    assert looks.timers[-1].cancelled()
    looks.watchdog.engage()
    assert len(looks.timers) == 2
    pulse.begin()
    pulse.end()
    await asyncio.sleep(0)
    assert looks.told == []
