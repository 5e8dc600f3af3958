"""Runs worlds by seed, finds what is wrong, and makes what leads to it short."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.errors import AntiphonError
from tools.simulation.caller import Caller
from tools.simulation.network import Violation
from tools.simulation.world import World

MOST_CALLERS = 3
MOST_FRAMES = 12
MOST_FAULTS = 3
MOST_CANCELS = 2
MOST_CHOICES = 400
RARE = 24
"""One of so many choices lets something fail, or heal, if anything can."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who calls, what may fail, and which of the moves that there were was made each time."""

    frames: Sequence[int]
    faults: int
    cancels: int
    choices: Sequence[int]


@dataclass(frozen=True, slots=True)
class Found:
    """Something that must not be, and how it came about."""

    scenario: Scenario
    what: str
    transcript: Sequence[str]

    def __str__(self) -> str:
        lines = [f"{number:4} {line}" for number, line in enumerate(self.transcript, 1)]
        return "\n".join([*lines, f"     {self.what}"])


def scenario_of(seed: int) -> Scenario:
    """What a seed draws."""
    chance = random.Random(seed)
    frames = [chance.randint(1, MOST_FRAMES) for _ in range(chance.randint(1, MOST_CALLERS))]
    return Scenario(
        frames,
        faults=chance.randint(0, MOST_FAULTS),
        cancels=chance.randint(0, MOST_CANCELS),
        choices=[chance.getrandbits(32) for _ in range(chance.randint(1, MOST_CHOICES))],
    )


def play(scenario: Scenario) -> Found | int:
    """How many moves were made until all had ended as it should; or what was found."""
    callers = [
        Caller(f"call{number}", number + 1, frames, most_attempts=2 + 2 * MOST_FAULTS)
        for number, frames in enumerate(scenario.frames)
    ]
    world = World(callers, faults=scenario.faults, cancels=scenario.cancels)
    transcript: list[str] = []
    try:
        for choice in scenario.choices:
            rare, which = choice % RARE == 0, choice // RARE
            moves = (world.faults() if rare else []) or world.moves()
            if not moves:
                break
            name, move = moves[which % len(moves)]
            transcript.append(name)
            move()
        world.run_out(transcript.append)
    except (Violation, AntiphonError, AssertionError) as wrong:
        return Found(scenario, f"{type(wrong).__name__}: {wrong}", transcript)
    return len(transcript)


def shrink(found: Found) -> Found:
    """The same kind of finding with as few choices as can be left out one after the other."""
    kind = _kind(found)

    def tried(choices: Sequence[int]) -> Found | None:
        scenario = found.scenario
        again = play(Scenario(scenario.frames, scenario.faults, scenario.cancels, choices))
        return again if isinstance(again, Found) and _kind(again) == kind else None

    choices = list(found.scenario.choices)
    size = len(choices)
    while size:
        at = 0
        while at < len(choices):
            shorter = choices[:at] + choices[at + size :]
            if (again := tried(shorter)) is not None:
                found, choices = again, shorter
            else:
                at += size
        size //= 2
    return found


def _kind(found: Found) -> str:
    """What was found, whoever it was found of."""
    return re.sub(r"[\w:]*\d\S*", "#", found.what)
