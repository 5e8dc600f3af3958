"""What the consumer keeps of a link across connections, and its answers to it.

Chunks are counted; a number below the count has come before and is dropped. What
is told to the producer and must not get lost (refusals, credits) is kept until the
producer says that it has come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from antiphon.errors import DataLoss, ResourceExhausted
from antiphon.transport.settings import LinkState
from antiphon.v1 import stage_pb2

MAX_RESPONSES = 65536
Told = TypeVar("Told")


def is_next(number: int, received: int) -> bool:
    """Whether a chunk of the link is the one that follows those that were received; False if it
    has come before. Raises `DataLoss` when one before it is missing."""
    if number > received:
        raise DataLoss(f"link: chunk {number} came, {received} was expected")
    return number == received


class ResponseLog(Generic[Told]):
    """Responses that the producer has not confirmed, numbered by their order."""

    def __init__(self) -> None:
        self._responses: deque[Told] = deque()
        self._first = 0

    def append(self, response: Told) -> None:
        """One more. Raises `ResourceExhausted` when the producer confirms none."""
        if len(self._responses) >= MAX_RESPONSES:
            raise ResourceExhausted(f"{MAX_RESPONSES} responses wait for the producer")
        self._responses.append(response)

    def confirmed(self, count: int) -> None:
        """The first `count` responses of the link have come."""
        while self._first < count and self._responses:
            self._responses.popleft()
            self._first += 1

    def since(self, number: int) -> list[Told]:
        """The responses from a number on."""
        return [self._responses[at] for at in range(number - self._first, len(self._responses))]

    @property
    def first(self) -> int:
        """Number of the first that is not confirmed."""
        return self._first

    @property
    def count(self) -> int:
        """How many there have been."""
        return self._first + len(self._responses)


@dataclass(slots=True)
class IncomingLink:
    """A link from an upstream process. `changed` is set when there is something to answer.

    `producer` is the host and the address of the process behind it. `overrun` says
    that it confirms no answers: the link cannot go on.
    """

    link_id: str
    producer: tuple[str, str]
    boot_id: str
    state: LinkState
    received: int = 0
    responses: ResponseLog[stage_pb2.LinkResponse] = field(default_factory=ResponseLog)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    expiry: asyncio.TimerHandle | None = None
    overrun: bool = False

    def respond(self, response: stage_pb2.LinkResponse) -> None:
        """Tell the producer, now or after it is back; too much ends the connection."""
        try:
            self.responses.append(response)
        except ResourceExhausted:
            self.overrun = True
        self.changed.set()
