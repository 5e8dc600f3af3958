"""Rounds of answers with one fault in each, followed by checks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon_tools.chaos.conversing import KnownTalk
from antiphon_tools.chaos.faults import NAMES, OF_STAGES, OF_THE_GATEWAY, Fault
from antiphon_tools.chaos.fleet import TargetFleet
from antiphon_tools.chaos.heard import Heard
from antiphon_tools.chaos.listener import AnswerListener, KnownQuestion
from antiphon_tools.launcher.plan import GATEWAY

TEXTS = ("Who are you?", "Sing the second bell.", "day one", "Count to ten, please.")
SHORTEST, LONGEST = 30, 70
"""The minimum and maximum number of codec frames in an answer."""
LONGEST_TEXT = 24
MOST_PIECES = 3
"""The maximum number of audio pieces per listener before the fault."""


class ChaosFound(Exception):
    """Raised when a check fails."""


def known_questions(chance: random.Random, *, long_text: bool = False) -> list[KnownQuestion]:
    """Return each text twice, with greedy and with seeded sampling.

    If `long_text` is true, the text has one token per codec frame.
    """
    questions = []
    for number in range(2 * len(TEXTS)):
        seed, frames = chance.getrandbits(32), chance.randint(SHORTEST, LONGEST)
        questions.append(
            KnownQuestion(
                TEXTS[number % len(TEXTS)],
                temperature=float(number >= len(TEXTS)),
                seed=seed,
                max_text=frames if long_text else LONGEST_TEXT,
                max_frames=frames,
            )
        )
    return questions


def known_talks(chance: random.Random) -> list[KnownTalk]:
    """Return conversations that consist of two user turns each."""
    pairs = zip(TEXTS, (*TEXTS[1:], TEXTS[0]), strict=True)
    return [
        KnownTalk(pair, LONGEST_TEXT, chance.randint(SHORTEST // 2, LONGEST // 2)) for pair in pairs
    ]


@dataclass(frozen=True, slots=True)
class Round:
    """A fault, its target, and the answers that listeners received during it."""

    fault: Fault
    target: str
    after: int
    heard: Sequence[Heard]


class Rounds:
    """Runs rounds of answers. The seed determines all questions and faults."""

    def __init__(
        self,
        fleet: TargetFleet,
        listener: AnswerListener,
        *,
        seed: int,
        listeners: int,
        faults: Collection[str] = NAMES,
        roles: Collection[str] = (),
    ) -> None:
        self._fleet = fleet
        self._listener = listener
        self._chance = random.Random(seed)
        self._listeners = listeners
        self._faults = [*OF_STAGES.values(), *OF_THE_GATEWAY.values()]
        self._faults = [each for each in self._faults if each.name in faults]
        self._next_faults: list[Fault] = []
        self._roles = roles
        self._questions: list[KnownQuestion | KnownTalk] = [
            *known_questions(self._chance),
            *known_talks(self._chance),
        ]
        self._expected: list[list[Heard]] = []

    async def learn(self) -> None:
        """Record every answer without faults and the open descriptors of the processes.

        Raises `ChaosFound` if an answer fails.
        """
        for question in self._questions:
            answers = await self._answers(question)
            for heard in answers:
                if heard.error is not None or not heard.pieces:
                    raise ChaosFound(f"no fault-free answer to {question}: {heard.error}")
            self._expected.append(answers)
        await self._check_rest("fault-free answers")

    async def run(self) -> AsyncIterator[Round]:
        """Yield an unlimited number of rounds. Raises `ChaosFound` if a check fails."""
        while True:
            yield await self._round()

    async def _round(self) -> Round:
        fault, target, after = self._draw()
        asked = [self._chance.randrange(len(self._questions)) for _ in range(self._listeners)]
        due = _Countdown(after)
        async with asyncio.TaskGroup() as answering:
            listening = [
                answering.create_task(self._answers(self._questions[each], due.count))
                for each in asked
            ]
            waiting = answering.create_task(due.reached.wait())
            # The answers may end before the fault is due.
            either: tuple[asyncio.Future[Any], ...] = (asyncio.gather(*listening), waiting)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await fault.strike(self._fleet.victim(target, self._chance))
        heard = [each.result() for each in listening]
        done = Round(fault, target, after, [each for answers in heard for each in answers])
        for number, answers in zip(asked, heard, strict=True):
            self._check(done, self._questions[number], answers, self._expected[number])
        try:
            await self._fleet.recovered(target if fault.kills else None)
        except TimeoutError as late:
            raise ChaosFound(f"{target} has not recovered after {fault.name}; {late}") from None
        await self._check_rest(f"{fault.name} of {target}")
        return done

    async def _answers(
        self, question: KnownQuestion | KnownTalk, on_piece: Callable[[float], None] | None = None
    ) -> list[Heard]:
        """Return the received answers.

        The result contains one answer for a question, and the answers of all turns up to an error
        for a conversation.
        """
        if isinstance(question, KnownTalk):
            return await self._listener.converse(question, on_piece)
        return [await self._listener.listen(question, on_piece)]

    def _draw(self) -> tuple[Fault, str, int]:
        """Choose the fault, its target, and the number of audio pieces that precede it."""
        if not self._next_faults:
            # Each fault occurs once before any of them is repeated.
            self._next_faults = self._chance.sample(self._faults, len(self._faults))
        fault = self._next_faults.pop()
        stages = [
            name
            for name in self._fleet.stages
            if not self._roles or name.partition("#")[0] in self._roles
        ]
        target = self._chance.choice(stages)
        if fault.name in OF_THE_GATEWAY:
            target = GATEWAY
        return fault, target, self._chance.randint(1, MOST_PIECES * self._listeners)

    def _check(
        self,
        done: Round,
        question: KnownQuestion | KnownTalk,
        answers: Sequence[Heard],
        expected: Sequence[Heard],
    ) -> None:
        where = f"{done.fault.name} of {done.target} after {done.after} pieces: {question}"
        # There are no answers after one that failed.
        for heard, undisturbed in zip(answers, expected, strict=False):
            if heard.error is not None:
                raise ChaosFound(f"{where}: {heard.error.code.name}: {heard.error}")
            if difference := heard.difference(undisturbed):
                raise ChaosFound(f"{where}: {difference}")

    async def _check_rest(self, what: str) -> None:
        if held := await self._fleet.at_rest():
            raise ChaosFound(f"after {what}: {'; '.join(held)}")


class _Countdown:
    """Sets an event after a number of pieces."""

    def __init__(self, left: int) -> None:
        self._left = left
        self.reached = asyncio.Event()

    def count(self, seconds: float) -> None:
        """Count a piece."""
        self._left -= 1
        if self._left <= 0:
            self.reached.set()
