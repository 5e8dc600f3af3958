"""Runs simulations by seed and minimizes the sequence of events that leads to a violation."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from antiphon.errors import AntiphonError
from antiphon_tools.simulation.caller import Caller
from antiphon_tools.simulation.fleet import Move
from antiphon_tools.simulation.link_world import LinkWorld
from antiphon_tools.simulation.network import Violation
from antiphon_tools.simulation.world import World

MOST_CALLERS = 3
MOST_FRAMES = 12
MOST_FAULTS = 3
MOST_CANCELS = 2
MOST_CHOICES = 400
MOST_LINK_CHOICES = 120
RARE = 24
"""On average, one choice in this many causes a fault or a recovery, if one is possible."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The calls, the number of faults, and the choices that determine each move.

    If `only_link` is true, the calls are sessions that send a chunk per frame on a single link.
    """

    frames: Sequence[int]
    faults: int
    cancels: int
    choices: Sequence[int]
    only_link: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A violation and the moves that led to it.

    The first `chosen` lines are random moves. The remaining lines let all calls end, without
    further faults.
    """

    scenario: Scenario
    what: str
    transcript: Sequence[str]
    chosen: int

    def __str__(self) -> str:
        lines = [f"{number:4} {line}" for number, line in enumerate(self.transcript, 1)]
        return "\n".join([*lines, f"     {self.what}"])


def scenario_of(seed: int) -> Scenario:
    """Return the scenario for a seed."""
    chance = random.Random(seed)
    return Scenario(
        _drawn_frames(chance),
        faults=chance.randint(0, MOST_FAULTS),
        cancels=chance.randint(0, MOST_CANCELS),
        choices=[chance.getrandbits(32) for _ in range(chance.randint(1, MOST_CHOICES))],
    )


def link_scenario_of(seed: int) -> Scenario:
    """Return the scenario of a single link for a seed."""
    chance = random.Random(seed)
    return Scenario(
        _drawn_frames(chance),
        faults=chance.randint(0, MOST_FAULTS),
        cancels=0,
        choices=[chance.getrandbits(32) for _ in range(chance.randint(1, MOST_LINK_CHOICES))],
        only_link=True,
    )


def _drawn_frames(chance: random.Random) -> list[int]:
    return [chance.randint(1, MOST_FRAMES) for _ in range(chance.randint(1, MOST_CALLERS))]


def play(scenario: Scenario, script: Sequence[str] | None = None) -> Found | int:
    """Run a simulation. Returns the number of moves, or the violation that was found.

    If `script` is set, its moves are made instead of random moves. Moves that are not possible are
    skipped.
    """
    world = _world(scenario)
    transcript: list[str] = []
    chosen = 0
    try:
        moves = _drawn(world, scenario.choices) if script is None else _named(world, script)
        for name, move in moves:
            transcript.append(name)
            chosen += 1
            move()
        world.run_out(transcript.append)
    except (Violation, AntiphonError, AssertionError) as wrong:
        return Found(scenario, f"{type(wrong).__name__}: {wrong}", transcript, chosen)
    return len(transcript)


def _world(scenario: Scenario) -> World | LinkWorld:
    if scenario.only_link:
        return LinkWorld(scenario.frames, faults=scenario.faults)
    callers = [
        Caller(f"call{number}", number + 1, frames, most_attempts=2 + 2 * MOST_FAULTS)
        for number, frames in enumerate(scenario.frames)
    ]
    return World(callers, faults=scenario.faults, cancels=scenario.cancels)


def _drawn(world: World | LinkWorld, choices: Sequence[int]) -> Iterator[Move]:
    for choice in choices:
        rare, which = choice % RARE == 0, choice // RARE
        kinds = list(_by_kind(world.faults()).values()) if rare else []
        # All kinds of faults have the same probability, although there are more lines than links.
        which, kind = divmod(which, len(kinds) or 1)
        moves = kinds[kind] if kinds else world.moves()
        if not moves:
            return
        yield moves[which % len(moves)]


def _by_kind(moves: Sequence[Move]) -> dict[str, list[Move]]:
    kinds: dict[str, list[Move]] = {}
    for move in moves:
        kinds.setdefault(_kind(move[0]), []).append(move)
    return kinds


def _named(world: World | LinkWorld, script: Sequence[str]) -> Iterator[Move]:
    for name in script:
        for move in [*world.faults(), *world.moves()]:
            if move[0] == name:
                yield move
                break


def shrink(found: Found) -> Found:
    """Reduce the number of moves, calls and frames for as long as the same kind of violation
    occurs.
    """
    while True:
        shorter = _fewer_frames(_fewer_moves(found))
        if _size(shorter) == _size(found):
            shorter = _fewer_pairs(found)
        if _size(shorter) == _size(found):
            return shorter
        found = shorter


def _size(found: Found) -> tuple[int, int, int]:
    frames = found.scenario.frames
    return found.chosen, len(frames), sum(frames)


def _again(found: Found, scenario: Scenario, script: Sequence[str]) -> Found | None:
    """Play a script, and return the violation if it is of the same kind."""
    result = play(scenario, script)
    is_same = isinstance(result, Found) and _kind(result.what) == _kind(found.what)
    return result if isinstance(result, Found) and is_same else None


def _fewer_moves(found: Found) -> Found:
    size = found.chosen
    while size:
        at = 0
        while at < found.chosen:
            script = list(found.transcript[: found.chosen])
            del script[at : at + size]
            shorter = _again(found, found.scenario, script)
            if shorter is not None and shorter.chosen < found.chosen:
                found = shorter
            else:
                at += size
        size //= 2
    return found


def _fewer_pairs(found: Found) -> Found:
    """Leave out two moves at a time, one of which may have needed the other."""
    script = found.transcript[: found.chosen]
    for first, second in itertools.combinations(range(found.chosen), 2):
        rest = [*script[:first], *script[first + 1 : second], *script[second + 1 :]]
        shorter = _again(found, found.scenario, rest)
        if shorter is not None and shorter.chosen < found.chosen:
            return shorter
    return found


def _fewer_frames(found: Found) -> Found:
    for callers in range(1, len(found.scenario.frames)):
        scenario = replace(found.scenario, frames=found.scenario.frames[:callers])
        if (fewer := _again(found, scenario, found.transcript[: found.chosen])) is not None:
            found = fewer
            break
    for number, frames in enumerate(found.scenario.frames):
        for count in range(frames):
            said = list(found.scenario.frames)
            said[number] = count
            scenario = replace(found.scenario, frames=said)
            if (less := _again(found, scenario, found.transcript[: found.chosen])) is not None:
                found = less
                break
    return found


def _kind(what: str) -> str:
    """Return the kind of a violation or a move, without its subject."""
    return re.sub(r"[\w:]*\d\S*", "#", what)
