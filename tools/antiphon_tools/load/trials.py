"""Runs a single load or a capacity search. This module contains everything except the requests
themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TextIO

from antiphon.errors import AntiphonError, FailedPrecondition, InvalidArgument, NotFound
from antiphon_tools.load import figures
from antiphon_tools.load.capacity import CapacitySearch
from antiphon_tools.load.drivers import connected
from antiphon_tools.load.live import shown
from antiphon_tools.load.machine import load_average, machine
from antiphon_tools.load.measured import Trace
from antiphon_tools.load.objectives import default_objectives, goodput
from antiphon_tools.load.options import LoadOptions
from antiphon_tools.load.processes import watching
from antiphon_tools.load.result import CapacityResult, Result
from antiphon_tools.load.run import Driver, Load, LoadRun, run_load
from antiphon_tools.load.stage_states import (
    left_open,
    link_counts,
    stage_states,
    stage_states_at_rest,
)
from antiphon_tools.load.summary import Observed, capacity_of, summarize
from antiphon_tools.load.target import Target

log = logging.getLogger(__name__)

LOOKS_PER_RUN = 60
LOOK_EVERY_S = (0.2, 2.0)
DRIVER = "load driver"
CHECKS = 3
"""The maximum number of attempts to make the request that precedes a load."""


async def load_service(options: LoadOptions, target: Target, stream: TextIO) -> Result:
    """Load a service as described in the options and show the progress on `stream`.

    Raises the error of the first request if all requests would fail for the same reason.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    about = {**machine(), "load average at start": load_average()}
    async with connected(options, target) as driver:
        await check_driver(driver)
        objectives = options.objectives or default_objectives(driver.outputs)
        options = replace(options, objectives=objectives)
        trials = Trials(options, target, driver, stream)
        if options.find_capacity:
            observed, capacity = await trials.find_capacity()
        else:
            observed, capacity = await trials.run(options.load), None
    return summarize(
        observed,
        service=options.service,
        started_at=started_at,
        settings={**options.settings(), **about, "load average at end": load_average()},
        objectives=options.objectives,
        capacity=capacity,
    )


async def check_driver(driver: Driver) -> None:
    """Make one request and raise an error that every request would encounter.

    If the error might not occur again, the request is repeated.
    """
    for number in range(CHECKS):
        now = asyncio.get_running_loop().time()
        try:
            await driver.ask(Trace(number, now, sent_at=now))
        except (InvalidArgument, NotFound, FailedPrecondition):
            raise
        except AntiphonError as error:
            log.info("the first request failed, so others may fail as well: %s", error)
        else:
            return


class Trials:
    """Runs loads on one target. The first Ctrl-C ends the run, and the second ends the program."""

    def __init__(
        self, options: LoadOptions, target: Target, driver: Driver, stream: TextIO
    ) -> None:
        self._options = options
        self._target = target
        self._driver = driver
        self._stream = stream
        self._stop = asyncio.Event()

    async def run(self, load: Load) -> Observed:
        """Run a load once."""
        shortest, longest = LOOK_EVERY_S
        every_s = min(max(load.ends_s / LOOKS_PER_RUN, shortest), longest)
        pids = {**self._target.pids, DRIVER: os.getpid()}
        before = await stage_states(self._target.stages, self._options.stage_trust)
        with self._interruptible():
            async with watching(pids, every_s) as watch, contextlib.AsyncExitStack() as stack:
                run = await self._run(load, stack)
        after = await stage_states_at_rest(self._target.stages, self._options.stage_trust)
        return Observed(
            run,
            usage=watch.seen,
            left_open=left_open(after),
            links=link_counts(self._target.stages, before, after),
            interrupted=self._stop.is_set(),
        )

    async def find_capacity(self) -> tuple[Observed, CapacityResult]:
        """Search for the capacity. Returns it together with the observations of the best run.

        If no run had sufficient goodput, the observations of the last run are returned instead.
        """
        options = self._options
        by_sessions = options.load.sessions is not None
        start = options.load.sessions if by_sessions else options.load.rate
        search = CapacitySearch(
            start=float(start or 1),
            goodput=options.wanted_goodput,
            resolution=options.resolution,
            max_trials=options.max_trials,
            whole=by_sessions,
        )
        unit = "sessions" if by_sessions else "requests/s"
        runs: dict[float, Observed] = {}
        while (amount := search.next_load()) is not None and not self._stop.is_set():
            observed = await self.run(_with_amount(options.load, amount))
            if observed.interrupted and runs:
                break
            runs[amount] = observed
            requests = observed.run.requests
            good = goodput(requests, options.objectives)
            trial = search.record(amount, len(requests), good)
            self._say(
                f"  {figures.ratio(amount)} {unit}: goodput {figures.percent(good)} of "
                f"{len(requests)} requests, {'carried' if trial.carried else 'too much'}"
            )
        best = search.best
        return runs[best if best is not None else list(runs)[-1]], capacity_of(search, unit)

    async def _run(self, load: Load, stack: contextlib.AsyncExitStack) -> LoadRun:
        begun: asyncio.Future[LoadRun] = asyncio.get_running_loop().create_future()
        work = asyncio.create_task(
            run_load(load, self._driver, stop=self._stop, begun=begun.set_result)
        )
        try:
            await asyncio.wait((work, begun), return_when=asyncio.FIRST_COMPLETED)
            if begun.done():
                await stack.enter_async_context(
                    shown(begun.result(), self._options.objectives, self._stream)
                )
            return await work
        finally:
            work.cancel()
            await asyncio.wait([work])

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Make the first Ctrl-C only end the arrivals."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self._stop.set()
            loop.remove_signal_handler(signal.SIGINT)
            self._say("\nstopping; to stop immediately, press Ctrl-C again")

        loop.add_signal_handler(signal.SIGINT, stop)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _with_amount(load: Load, amount: float) -> Load:
    if load.sessions is not None:
        return replace(load, sessions=int(amount), max_open=max(load.max_open, int(amount)))
    return replace(load, rate=amount)
