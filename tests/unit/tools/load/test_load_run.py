"""When requests start, what happens to those that fail, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from antiphon.errors import InvalidArgument, ResourceExhausted, Unavailable
from antiphon_tools.load.live import progress_line
from antiphon_tools.load.measured import NOT_SENT, UNFINISHED, Trace
from antiphon_tools.load.objectives import Objective
from antiphon_tools.load.run import Load, LoadRun, run_load
from antiphon_tools.load.trials import CHECKS, check_driver

Work = Callable[[Trace], Awaitable[None]]


class Driver:
    """A driver that does what a test says and keeps what it was asked."""

    def __init__(self, work: Work) -> None:
        self.asked: list[Trace] = []
        self._work = work

    async def ask(self, trace: Trace) -> None:
        self.asked.append(trace)
        await self._work(trace)


async def nothing(trace: Trace) -> None:
    """An answer at once."""
    trace.texts.append(asyncio.get_running_loop().time())


async def for_ever(trace: Trace) -> None:
    """No answer at all."""
    await asyncio.Event().wait()


def errors(run: LoadRun) -> set[str]:
    return {each.error for each in run.requests}


async def test_open_loop_asks_at_each_arrival_and_counts_those_after_the_warm_up() -> None:
    driver = Driver(nothing)
    run = await run_load(Load(rate=100, sessions=None, seconds=0.3, warm_up_s=0.2), driver)
    assert [trace.number for trace in driver.asked] == list(range(run.sent))
    counted = [trace.number for trace in driver.asked if trace.due_at >= run.measured_from]
    assert sorted(each.number for each in run.requests) == counted
    assert 0 < len(counted) < run.sent
    assert errors(run) == {""}
    assert run.open == 0


async def test_open_loop_does_not_wait_for_answers() -> None:
    driver = Driver(for_ever)
    run = await run_load(Load(rate=200, sessions=None, seconds=0.2, drain_s=0), driver)
    assert len(driver.asked) > 10
    assert errors(run) == {UNFINISHED}


async def test_open_loop_counts_requests_that_are_due_while_too_many_are_open() -> None:
    driver = Driver(for_ever)
    load = Load(rate=200, sessions=None, seconds=0.2, drain_s=0, max_open=3)
    run = await run_load(load, driver)
    assert len(driver.asked) == run.sent == 3
    names = [each.error for each in run.requests]
    assert names.count(UNFINISHED) == 3
    assert names.count(NOT_SENT) == len(names) - 3 > 0
    assert all(each.late_s is None for each in run.requests if each.error == NOT_SENT)


async def test_an_error_that_passes_does_not_hide_one_that_each_request_gets() -> None:
    async def refuse(trace: Trace) -> None:
        if trace.number == 0:
            raise Unavailable("not yet")
        raise InvalidArgument("unknown")

    driver = Driver(refuse)
    with pytest.raises(InvalidArgument, match="unknown"):
        await check_driver(driver)
    assert [trace.number for trace in driver.asked] == [0, 1]


async def test_a_load_is_begun_though_its_first_requests_fail() -> None:
    async def fail(trace: Trace) -> None:
        raise ResourceExhausted("busy")

    driver = Driver(fail)
    await check_driver(driver)
    assert len(driver.asked) == CHECKS


async def test_lateness_of_the_driver_is_part_of_the_times() -> None:
    """A service that blocks the driver itself cannot look fast: requests were due before."""
    loop = asyncio.get_running_loop()

    async def block(trace: Trace) -> None:
        while trace.number == 0 and loop.time() < trace.due_at + 0.2:
            pass
        trace.texts.append(loop.time())

    run = await run_load(Load(rate=100, sessions=None, seconds=0.2), Driver(block))
    late = [each for each in run.requests if each.late_s and each.late_s > 0.05]
    assert late
    assert all(each.ttft is not None and each.ttft >= (each.late_s or 0) for each in late)


async def test_closed_loop_has_as_many_open_as_there_are_sessions() -> None:
    most = 0

    async def yielding(trace: Trace) -> None:
        nonlocal most
        most = max(most, len(driver.asked) - len(finished))
        await asyncio.sleep(0)
        finished.append(trace.number)
        if len(finished) == 30:
            stop.set()

    finished: list[int] = []
    driver, stop = Driver(yielding), asyncio.Event()
    await run_load(Load(rate=None, sessions=3, seconds=600), driver, stop=stop)
    assert most == 3
    assert sorted(finished) == sorted(set(finished))
    assert len(finished) >= 30


async def test_failures_are_counted_by_code_and_stage() -> None:
    async def refuse(trace: Trace) -> None:
        raise (
            ResourceExhausted("no slot", stage="talker")
            if trace.number % 2
            else Unavailable("gone", stage="talker", edge="codes")
        )

    run = await run_load(Load(rate=100, sessions=None, seconds=0.2), Driver(refuse))
    assert errors(run) == {
        "resource_exhausted (stage talker)",
        "unavailable (stage talker edge codes)",
    }


async def test_closed_loop_pauses_after_a_failure() -> None:
    async def refuse(trace: Trace) -> None:
        raise Unavailable("gone")

    driver = Driver(refuse)
    await run_load(Load(rate=None, sessions=1, seconds=0.25), driver)
    assert 1 <= len(driver.asked) <= 3


async def test_a_fault_of_the_driver_ends_the_run() -> None:
    async def broken(trace: Trace) -> None:
        raise ValueError("a bug")

    with pytest.raises(ExceptionGroup) as caught:
        await run_load(Load(rate=100, sessions=None, seconds=5), Driver(broken))
    assert isinstance(caught.value.exceptions[0], ValueError)


@pytest.mark.parametrize("sessions", [None, 2])
async def test_stop_ends_the_arrivals_and_waits_for_the_answers(sessions: int | None) -> None:
    stop, released = asyncio.Event(), asyncio.Event()

    async def stopping(trace: Trace) -> None:
        stop.set()
        asyncio.get_running_loop().call_later(0.01, released.set)
        await released.wait()

    rate = None if sessions else 50.0
    load = Load(rate=rate, sessions=sessions, seconds=600)
    run = await run_load(load, Driver(stopping), stop=stop)
    assert errors(run) == {""}
    assert run.sent <= 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 1, "sessions": 1},
        {"rate": None, "sessions": None},
        {"rate": -1.0, "sessions": None},
        {"rate": 1, "sessions": None, "seconds": 0},
        {"rate": 1, "sessions": None, "warm_up_s": -1},
    ],
)
def test_load_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        Load(**{"seconds": 1, **wrong})  # type: ignore[arg-type]


async def test_progress_says_how_the_run_stands() -> None:
    run = await run_load(Load(rate=50, sessions=None, seconds=0.2), Driver(nothing))
    line = progress_line(run, run.started_at + 0.1, (Objective("ttft", 10.0),))
    assert "0.1/0.2 s" in line
    assert f"sent {run.sent}  open 0  failed 0  ttft p50" in line
    assert line.endswith("good 100.0 %")
