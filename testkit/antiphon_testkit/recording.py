"""Records the facts that a stage passes to its session table, and replays them.

The table's instructions only depend on facts and times. If a recording of both is replayed on a new
table with the same plan, the table must therefore return the same instructions. This makes it
possible to inspect the behaviour of a stage fact by fact, without its engine, links and clients.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from antiphon.errors import AntiphonError
from antiphon.runtime.session.facts import Fact
from antiphon.runtime.session.instructions import Instruction
from antiphon.runtime.session.plan import StagePlan
from antiphon.runtime.session.table import SessionTable

Plain = str | int | float | bool | None | tuple["Plain", ...]


@dataclass(frozen=True, slots=True)
class RecordedFact:
    """A fact, the time at which it arrived (seconds on the stage's clock), and the instructions
    that the table returned.
    """

    fact: Fact
    now: float
    answer: Plain


class FactRecording:
    """The entries of a stage, from its first fact onwards. It keeps every tensor alive."""

    def __init__(self) -> None:
        self.entries: list[RecordedFact] = []

    def note(self, fact: Fact, now: float, answer: Sequence[Instruction] | AntiphonError) -> None:
        """Add an entry. A `Stage` calls this with each fact."""
        self.entries.append(RecordedFact(fact, now, plain(answer)))


def replay(plan: StagePlan, entries: Iterable[RecordedFact]) -> list[Plain]:
    """Return the instructions of a new table for the recorded facts."""
    table = SessionTable(plan)
    answers: list[Plain] = []
    for entry in entries:
        try:
            answers.append(plain(table.handle(entry.fact, entry.now)))
        except AntiphonError as error:
            answers.append(plain(error))
    return answers


def plain(value: Any) -> Plain:
    """Convert a value to plain contents that can be compared with `==` and are readable when
    printed.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case enum.Enum():
            return value.name
        case np.ndarray():
            digest = blake2b(np.ascontiguousarray(value).tobytes(), digest_size=8).hexdigest()
            return (value.dtype.name, tuple(value.shape), digest)
        case AntiphonError():
            return (type(value).__name__, value.message, value.field, value.stage, value.edge)
        case Mapping():
            return tuple((plain(key), plain(each)) for key, each in value.items())
        case frozenset() | set():
            return tuple(sorted(map(str, value)))
        case Struct():
            return (type(value).__name__, *map(plain, astuple(value)))
        case _ if is_dataclass(value):
            parts = (plain(getattr(value, each.name)) for each in fields(value))
            return (type(value).__name__, *parts)
    return tuple(plain(each) for each in value)
