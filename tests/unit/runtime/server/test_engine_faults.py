"""What keeps sessions out of a stage whose engine fails, and when waiting helps no more."""

from __future__ import annotations

import asyncio

from antiphon.errors import AntiphonError, Internal, Unavailable
from antiphon.runtime.server.engine_faults import FAILURES_TO_PAUSE, EngineFaults
from antiphon.runtime.session.facts import EngineStepped
from antiphon.runtime.stepping.rounds import FAILURES_TO_GIVE_UP

RAISED = EngineStepped(error=Internal("RuntimeError: it exploded"))
GOOD = EngineStepped(step_segments=1)
NEVER_S, AT_ONCE_S, GENEROUS_S = 10_000.0, 0.001, 60.0
Told = tuple[AntiphonError | None, bool]


class Watched:
    """The faults of an engine, and what is told of them."""

    def __init__(self, *, pause_s: float = NEVER_S, hung_s: float = NEVER_S) -> None:
        self.told: asyncio.Queue[Told] = asyncio.Queue()
        self.faults = EngineFaults(
            lambda fault, passes: self.told.put_nowait((fault, passes)),
            pause_s=pause_s,
            hung_s=hung_s,
        )

    async def next(self) -> Told:
        async with asyncio.timeout(GENEROUS_S):
            return await self.told.get()


async def test_steps_that_raise_in_a_row_keep_sessions_out_before_the_engine_is_given_up() -> None:
    assert FAILURES_TO_PAUSE < FAILURES_TO_GIVE_UP
    watched = Watched()
    watched.faults.stepped(RAISED)
    assert watched.faults.fault is None, "one input may be at fault"
    assert watched.told.empty()
    watched.faults.stepped(RAISED)
    fault, passes = await watched.next()
    assert isinstance(fault, Unavailable)
    assert fault is watched.faults.fault
    assert "it exploded" in fault.message
    assert (fault.retry_after_s, passes) == (NEVER_S, True)
    watched.faults.stepped(EngineStepped(error=Unavailable("at its end"), fatal=True))
    fault, passes = await watched.next()
    assert "at its end" in str(fault)
    assert not passes
    watched.faults.close()


async def test_a_good_step_ends_the_pause_and_the_count() -> None:
    watched = Watched()
    for stepped in (RAISED, GOOD, RAISED):
        watched.faults.stepped(stepped)
    assert watched.faults.fault is None
    watched.faults.stepped(RAISED)
    assert (await watched.next())[0] is not None
    watched.faults.stepped(EngineStepped())
    assert watched.faults.fault is not None, "a round without a step says nothing"
    watched.faults.stepped(GOOD)
    assert await watched.next() == (None, True)
    watched.faults.stepped(RAISED)
    assert watched.faults.fault is None
    assert watched.told.empty()
    watched.faults.close()


async def test_an_engine_that_failed_is_tried_again_after_a_pause() -> None:
    watched = Watched(pause_s=AT_ONCE_S)
    watched.faults.stepped(RAISED)
    watched.faults.stepped(RAISED)
    assert (await watched.next())[0] is not None
    assert await watched.next() == (None, True)
    watched.faults.stepped(RAISED)
    assert (await watched.next())[0] is not None, "the count goes on"
    watched.faults.close()


async def test_an_engine_that_stays_in_a_step_is_not_waited_for_and_may_still_come_back() -> None:
    watched = Watched(hung_s=AT_ONCE_S)
    late = Unavailable("late")
    watched.faults.late(late)
    assert await watched.next() == (late, True)
    assert await watched.next() == (late, False)
    watched.faults.late(None)
    assert await watched.next() == (None, True)
    watched.faults.close()
