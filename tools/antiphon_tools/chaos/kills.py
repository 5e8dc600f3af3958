"""Kills the replica that generates an answer, at a random point in the answer.

Only one answer runs at a time, and it is received at playback speed. If each stage has a single
replica, the listener reads as fast as possible after the kill, so that an error is noticed
immediately.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from antiphon_tools.chaos.carriers import Carriers, failovers
from antiphon_tools.chaos.fleet import TargetFleet
from antiphon_tools.chaos.heard import Heard
from antiphon_tools.chaos.listener import AnswerListener, KnownQuestion
from antiphon_tools.chaos.rounds import ChaosFound, known_questions
from antiphon_tools.launcher.plan import role_of

LOOK_S = 0.03
"""The interval between checks of which replica generates the answer."""
MOST_MISSES = 20
"""The maximum number of consecutive answers for which the stage has finished before it could be
killed.
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """A replica that was killed while it was generating an answer. Times are in seconds.

    `at_s` is the duration of the speech that the listener had received, or 0 before the first
    piece. `found` describes the checks that failed. `added_s` is the maximum delay of the audio
    compared to the answer without faults. `underrun_s` is the maximum delay for a player that
    starts with the first piece.
    """

    stage: str
    target: str
    question: str
    greedy: bool
    at_s: float
    found: str
    continued: int
    continued_after_s: float
    added_s: float
    underrun_s: float
    error: str
    error_after_s: float
    back_after_s: float
    answered_after_s: float

    @property
    def completed(self) -> bool:
        """Whether the listener received the complete answer."""
        return not self.error


@dataclass(slots=True)
class _KnownAnswer:
    """An answer without faults. For each stage, it contains the playback time until which the stage
    works on the answer.
    """

    question: KnownQuestion
    heard: Heard
    at_work_s: Mapping[str, float]


class _Progress:
    """The duration of the speech that a listener has received."""

    def __init__(self) -> None:
        self.seconds = self.last_s = 0.0
        self.changed = asyncio.Event()

    def take(self, seconds: float) -> None:
        """Count another piece."""
        self.seconds += seconds
        self.last_s = seconds
        self.changed.set()


class Kills:
    """Kills replicas of each stage in turn. After each pass over the stages, it switches between
    greedy and seeded answers.

    The questions and the time of each kill are random. `missed` counts the kills that were skipped
    because the stage had already finished.
    """

    def __init__(
        self,
        fleet: TargetFleet,
        listener: AnswerListener,
        carriers: Carriers,
        *,
        seed: int,
        roles: Sequence[str] = (),
    ) -> None:
        self._fleet = fleet
        self._listener = listener
        self._carriers = carriers
        self._chance = random.Random(seed)
        self._roles = list(roles) or list(dict.fromkeys(role_of(name) for name in fleet.stages))
        self._known: list[_KnownAnswer] = []
        self.missed = dict.fromkeys(self._roles, 0)

    async def learn(self) -> None:
        """Record every answer without faults. Raises `ChaosFound` if an answer fails."""
        for question in known_questions(self._chance, long_text=True):
            # The first answer is slower because the links have to be established, so it is
            # repeated.
            for _ in range(1 if self._known else 2):
                known = await self._hear(question)
            if known.heard.error is not None or not known.heard.pieces:
                raise ChaosFound(f"no fault-free answer to {question}: {known.heard.error}")
            self._known.append(known)
        if held := await self._fleet.at_rest():
            raise ChaosFound("; ".join(held))

    async def _hear(self, question: KnownQuestion) -> _KnownAnswer:
        progress, at_work = _Progress(), dict.fromkeys(self._roles, 0.0)
        answering = asyncio.create_task(self._listener.listen(question, progress.take))
        while not answering.done():
            for name in await self._carriers.now():
                at_work[role_of(name)] = progress.seconds
            await asyncio.sleep(LOOK_S)
        return _KnownAnswer(question, answering.result(), at_work)

    async def run(self) -> AsyncIterator[Kill]:
        """Yield an unlimited number of kills. Raises `ChaosFound` if a service does not recover."""
        count = 0
        while True:
            role = self._roles[count % len(self._roles)]
            greedy = count // len(self._roles) % 2 == 0
            for _ in range(MOST_MISSES):
                if (done := await self._kill_one(role, greedy=greedy)) is not None:
                    break
                self.missed[role] += 1
            else:
                raise ChaosFound(f"{role} has done its part of each answer before it is killed")
            yield done
            count += 1

    async def _kill_one(self, role: str, *, greedy: bool) -> Kill | None:
        """Kill one replica. Returns None if the stage had already finished."""
        alike = [each for each in self._known if (each.question.temperature == 0) == greedy]
        known = self._chance.choice(alike)
        due_s = self._chance.uniform(-known.heard.first_after_s, known.at_work_s[role])
        before = await failovers(self._fleet)
        progress, hurry = _Progress(), asyncio.Event()
        answering = asyncio.create_task(
            self._listener.listen(known.question, progress.take, hurry=hurry)
        )
        if due_s < 0:
            await asyncio.wait((answering,), timeout=known.heard.first_after_s + due_s)
        target = await self._carrier(role, max(0.0, due_s), progress, answering)
        if target is None:
            await answering
            return None
        at_s, killed_at = progress.seconds, time.monotonic()
        os.kill(self._fleet.pid(target), signal.SIGKILL)
        if self._fleet.replicas == 1:
            hurry.set()
        heard = await answering
        ended_at = time.monotonic()
        found = [heard.difference(known.heard)]
        back_at = await self._back(target)
        found += await self._heard_again(known) if heard.error is not None else []
        answered_at = time.monotonic()
        found += await self._fleet.at_rest()
        since = (await failovers(self._fleet)).since(before)
        return Kill(
            stage=role,
            target=target,
            question=str(known.question),
            greedy=greedy,
            at_s=at_s,
            found="; ".join(filter(None, found)),
            continued=int(since.continued),
            continued_after_s=since.seconds,
            added_s=_added_s(heard, known.heard, killed_at),
            underrun_s=heard.underrun_s,
            error="" if heard.error is None else f"{heard.error.code.name}: {heard.error}",
            error_after_s=0.0 if heard.error is None else ended_at - killed_at,
            back_after_s=back_at - killed_at,
            answered_after_s=0.0 if heard.error is None else answered_at - back_at,
        )

    async def _carrier(
        self, role: str, due_s: float, progress: _Progress, answering: asyncio.Task[Heard]
    ) -> str | None:
        """Return the replica that generates the answer when playback reaches `due_s`.

        Returns None if there is none.
        """
        while progress.seconds < due_s and not answering.done():
            progress.changed.clear()
            changing = asyncio.create_task(progress.changed.wait())
            await asyncio.wait((changing, answering), return_when=asyncio.FIRST_COMPLETED)
            changing.cancel()
        # Wait for a point within the last piece, which is being played now.
        left_s = progress.last_s - (progress.seconds - due_s)
        await asyncio.wait((answering,), timeout=max(0.0, left_s))
        while not answering.done():
            if names := await self._carriers.of(role):
                return names[0]
            # Before the first audio, the stages may not have opened the session yet.
            if progress.seconds > 0:
                return None
        return None

    async def _back(self, target: str) -> float:
        """Wait until a killed replica serves again and return the time."""
        try:
            await self._fleet.recovered(target)
        except TimeoutError as late:
            raise ChaosFound(f"{target} has not recovered after it was killed; {late}") from None
        return time.monotonic()

    async def _heard_again(self, known: _KnownAnswer) -> list[str]:
        """Check the next answer after all replicas are available again and return what is wrong
        with it.
        """
        heard = await self._listener.listen(known.question)
        if heard.error is not None:
            return [f"the next answer failed: {heard.error}"]
        return [f"the next answer: {each}" for each in [heard.difference(known.heard)] if each]


def _added_s(heard: Heard, expected: Heard, killed_at: float) -> float:
    """Return the maximum delay of the audio compared to the answer without faults."""
    added = heard.underrun_s - expected.underrun_s
    if heard.pieces and heard.pieces[0][0] > killed_at:
        added = max(added, heard.first_after_s - expected.first_after_s)
    return max(0.0, added)
