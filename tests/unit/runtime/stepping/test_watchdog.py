"""The watch on the engine's steps: when it looks, and what it says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import uvloop

from antiphon.deadlines.awake_deadline import SLICE_S
from antiphon.errors import AntiphonError
from antiphon.runtime.stepping import watchdog
from antiphon.runtime.stepping.watchdog import Pulse, Watchdog

LONG_S = 1000.0


class Waits:
    """How long a thread has waited for a core, as the test says."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def seconds(self) -> float:
        return self.waited_s


class HandTimer:
    """A timer that runs when the test says so."""

    def __init__(self, run: Callable[[float], None]) -> None:
        self._run = run
        self.due_at: float | None = None
        self.delays: list[float] = []

    def set_at(self, moment: float) -> None:
        self.due_at = moment
        self.delays.append(moment - asyncio.get_running_loop().time())

    def cancel(self) -> None:
        self.due_at = None

    def expire(self, late_s: float) -> None:
        assert self.due_at is not None
        self.due_at = None
        self._run(late_s)


class Looks:
    """A watchdog with a timer in the test's hand, and what it has told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> None:
        self.told: list[AntiphonError | None] = []
        self.has_work = True
        monkeypatch.setattr(watchdog, "Timer", self._hand_timer)
        frozen = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: frozen)
        self.watchdog = Watchdog(timeout_s, self.told.append, lambda: self.has_work)

    def _hand_timer(self, run: Callable[[float], None]) -> HandTimer:
        self.timer = HandTimer(run)
        return self.timer

    def look(self, late_s: float = 0.0) -> None:
        """The pending look's time has come, `late_s` ago."""
        self.timer.expire(late_s)


async def test_next_look_is_when_the_step_that_goes_on_has_had_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(monkeypatch, LONG_S)
    pulse = looks.watchdog.pulse()
    looks.watchdog.engage()
    looks.watchdog.engage()
    assert len(looks.timer.delays) == 1
    pulse.begin()
    looks.look()
    first, second = looks.timer.delays
    assert second < first == pytest.approx(LONG_S)
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
    assert looks.timer.due_at is None
    looks.watchdog.engage()
    assert looks.timer.due_at is not None
    looks.watchdog.close()
    assert looks.timer.due_at is None
    looks.watchdog.engage()
    assert looks.timer.due_at is None
    pulse.begin()
    pulse.end()
    await asyncio.sleep(0)
    assert looks.told == []


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of a watchdog's pulses."""
    now = [1000.0]
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_thread_that_gets_no_core_is_not_late(now: list[float]) -> None:
    waits = Waits()
    waits.waited_s = 50.0
    pulse = Pulse(starvation=lambda: waits)  # type: ignore[arg-type,return-value]
    pulse.begin()
    now[0] += 12.0
    waits.waited_s += 9.0
    assert pulse.look(10.0) == pytest.approx(7.0)
    now[0] += 7.0
    assert pulse.look(10.0) == 0.0
    assert pulse.late
    # The next step's time begins with it.
    pulse.end()
    pulse.begin()
    assert pulse.look(10.0) == 10.0


@pytest.mark.parametrize("hang", ["deadlock", "endless loop"])
def test_a_step_that_hangs_waits_for_no_core(hang: str) -> None:
    """Linux counts that: of a thread that sleeps, and of one that computes, in wall time."""
    go_on, began = threading.Event(), threading.Event()
    pulse = Pulse()

    def step() -> None:
        pulse.begin()
        began.set()
        while not go_on.is_set():
            if hang == "deadlock":
                go_on.wait()
        pulse.end()

    thread = threading.Thread(target=step)
    thread.start()
    began.wait()
    while pulse.look(0.2):
        pass
    assert pulse.late
    go_on.set()
    thread.join()
    assert not pulse.late


async def test_a_watch_that_comes_late_itself_blames_no_step(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    looks = Looks(monkeypatch, 10.0)
    pulse = looks.watchdog.pulse()
    looks.watchdog.engage()
    pulse.begin()
    late_s = 25.0
    now[0] += 10.0 + late_s
    looks.look(late_s)
    assert looks.told == []
    assert looks.timer.delays[-1] == pytest.approx(SLICE_S)
    now[0] += SLICE_S
    looks.look()
    assert [type(each).__name__ for each in looks.told] == ["Unavailable"]
    looks.watchdog.close()


def test_step_is_reported_late_when_uvloop_runs_the_look_at_once() -> None:
    async def first_report() -> AntiphonError | None:
        reported = asyncio.get_running_loop().create_future()
        watchdog = Watchdog(0.0, reported.set_result, lambda: True)
        watchdog.pulse().begin()
        watchdog.engage()
        fault: AntiphonError | None = await reported
        watchdog.close()
        return fault

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(first_report()) is not None
