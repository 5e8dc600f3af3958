"""Schedules the requests of a run, regardless of their type.

In an open loop with a given rate, the times at which requests are due form a Poisson process.
Requests are sent whether or not earlier requests have completed, which models independent users.
Times are measured from the moment at which a request was due. If a request is due while `max_open`
requests are open, it is not sent and counts as failed, so that requests are never delayed silently.

In a closed loop with a given number of sessions, each session sends its next request as soon as it
has received an answer.

Requests that are due during the warm-up are sent as usual but are not part of the result. After the
last arrival, the run waits for open requests for up to `drain_s` seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from antiphon.errors import AntiphonError, InvalidArgument
from antiphon_tools.load.arrivals import poisson_arrivals
from antiphon_tools.load.measured import NOT_SENT, UNFINISHED, Measured, Trace

# Without this pause, a session whose requests fail immediately would send them in a tight loop.
PAUSE_AFTER_ERROR_S = 0.1


class Driver(Protocol):
    """Sends one type of request."""

    async def ask(self, trace: Trace) -> None:
        """Run the request until it ends and record observations in `trace`. Times are those of the
        event loop's clock.

        Raises `AntiphonError` if the request fails. All resources are released in this case, and
        also if the method is cancelled.
        """


@dataclass(frozen=True, slots=True)
class Load:
    """The load and its duration. Either `rate` (requests per second) or `sessions` must be set.

    Raises `InvalidArgument` if a value is out of range.
    """

    rate: float | None
    sessions: int | None
    seconds: float
    warm_up_s: float = 0.0
    drain_s: float = 60.0
    max_open: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.sessions is None):
            raise InvalidArgument("set either a rate or a number of sessions")
        for name in ("rate", "sessions", "seconds", "max_open"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidArgument(f"{name}: must be above 0, got {value}", field=name)
        for name in ("warm_up_s", "drain_s"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name}: must not be negative", field=name)

    @property
    def ends_s(self) -> float:
        """The time at which the last request can be due, in seconds since the start."""
        return self.warm_up_s + self.seconds


@dataclass(slots=True)
class LoadRun:
    """The state of a run and, after it has ended, its result.

    Times are on the event loop's clock. `requests` contains the requests that were due after the
    warm-up, in the order in which they completed. `open_counts` contains the time of each change in
    the number of open requests and the new number. `messages` contains the message of the first
    error of each kind.
    """

    load: Load
    started_at: float
    ended_at: float = 0.0
    sent: int = 0
    requests: list[Measured] = field(default_factory=list)
    open_counts: list[tuple[float, int]] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """The number of open requests."""
        return self.open_counts[-1][1] if self.open_counts else 0

    @property
    def measured_from(self) -> float:
        """The end of the warm-up."""
        return self.started_at + self.load.warm_up_s


async def run_load(
    load: Load,
    driver: Driver,
    *,
    stop: asyncio.Event | None = None,
    begun: Callable[[LoadRun], None] = lambda run: None,
) -> LoadRun:
    """Send the requests of a load. Returns when all of them have completed.

    `begun` is called with the run before its first request. To end the arrivals early, set `stop`.
    """
    run = LoadRun(load, started_at=asyncio.get_running_loop().time())
    begun(run)
    await _Runner(run, driver, stop or asyncio.Event()).go()
    return run


class _Runner:
    def __init__(self, run: LoadRun, driver: Driver, stop: asyncio.Event) -> None:
        self._run = run
        self._driver = driver
        self._stop = stop
        self._clock = asyncio.get_running_loop().time
        self._tasks: set[asyncio.Task[Any]] = set()

    async def go(self) -> None:
        """Start requests when they are due, wait for them, and cancel those that take too long."""
        load = self._run.load
        async with asyncio.TaskGroup() as group:
            if load.rate is not None:
                await self._open_loop(group, load.rate)
            else:
                await self._closed_loop(group, load.sessions or 0)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=load.drain_s)
            for task in self._tasks:
                task.cancel()
        self._run.ended_at = self._clock()

    async def _open_loop(self, group: asyncio.TaskGroup, rate: float) -> None:
        load = self._run.load
        for number, at_s in enumerate(poisson_arrivals(rate, load.ends_s, load.seed)):
            due_at = self._run.started_at + at_s
            if not await self._wait_until(due_at):
                return
            trace = Trace(number, due_at)
            if len(self._tasks) >= load.max_open:
                self._note(trace, NOT_SENT)
            else:
                self._start(group, self._ask(trace))
        await self._wait_until(self._run.started_at + load.ends_s)

    async def _closed_loop(self, group: asyncio.TaskGroup, sessions: int) -> None:
        for session in range(sessions):
            self._start(group, self._session(session, sessions))
        await self._wait_until(self._run.started_at + self._run.load.ends_s)

    async def _session(self, number: int, step: int) -> None:
        """Send requests one after another until the end of the run."""
        ends_at = self._run.started_at + self._run.load.ends_s
        while (now := self._clock()) < ends_at and not self._stop.is_set():
            trace = Trace(number, now)
            if await self._ask(trace):
                await self._wait_until(self._clock() + PAUSE_AFTER_ERROR_S)
            number += step

    def _start(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, Any]) -> None:
        task = group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, trace: Trace) -> str:
        """Send a request and record the outcome. Returns its error, or an empty string."""
        self._count_open(1)
        self._run.sent += 1
        trace.sent_at = self._clock()
        error = UNFINISHED
        try:
            await self._driver.ask(trace)
            error = ""
        except AntiphonError as failure:
            error = _name(failure)
            self._run.messages.setdefault(error, failure.message)
        finally:
            self._count_open(-1)
            self._note(trace, error)
        return error

    def _note(self, trace: Trace, error: str) -> None:
        if trace.due_at >= self._run.measured_from:
            self._run.requests.append(trace.end(self._clock(), error))

    def _count_open(self, change: int) -> None:
        self._run.open_counts.append((self._clock(), self._run.open + change))

    async def _wait_until(self, at: float) -> bool:
        """Wait until a point in time. Returns False if the run is stopped first."""
        try:
            async with asyncio.timeout_at(at):
                await self._stop.wait()
        except TimeoutError:
            return True
        return False


def _name(error: AntiphonError) -> str:
    """Return the kind of an error and where it occurred, which is the key by which errors are
    counted.
    """
    where = " ".join(
        f"{kind} {name}" for kind, name in (("stage", error.stage), ("edge", error.edge)) if name
    )
    return f"{error.code.value} ({where})" if where else error.code.value
