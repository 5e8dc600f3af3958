"""What lies between a gateway and its stages: queues, whose next message may arrive."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from antiphon.runtime.session.facts import Fact
from antiphon.runtime.session.instructions import End, Instruction, Send
from antiphon.values.chunk import Chunk
from antiphon_tools.simulation.caller import Caller
from antiphon_tools.simulation.host import SimulatedStage


class Violation(Exception):
    """Something that must not be."""


class Gone:
    """The last that arrives from who is gone."""


GONE = Gone()


@dataclass(eq=False)
class SimulatedStream:
    """A session's hold on one replica."""

    caller: Caller
    host: SimulatedStage
    session_id: str
    down: deque[Fact] = field(default_factory=deque)
    up: deque[Instruction | Gone] = field(default_factory=deque)


def name_of(message: object) -> str:
    """A message in a word or two."""
    match message:
        case Gone():
            return "the end of the connection"
        case Chunk() as chunk:
            return f"{chunk.edge} {chunk.sequence} of {chunk.session_id}"
        case Send(_, chunk):
            return f"{chunk.edge} {chunk.sequence}"
        case End(_, error):
            return "the end" if error is None else f"the error {error.code.name}"
    return type(message).__name__
