"""The consumer's state of a link across connections, and its answers.

Chunks are counted. A chunk numbered below the count is a duplicate and is dropped. Refusals and
credits must not be lost, so they are kept until the producer confirms them.
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
Response = TypeVar("Response")


def is_next(number: int, received: int) -> bool:
    """Return whether a chunk follows those received; False for a duplicate.

    Raises `DataLoss` if an earlier chunk is missing.
    """
    if number > received:
        raise DataLoss(f"link: chunk {number} came, {received} was expected")
    return number == received


class ResponseLog(Generic[Response]):
    """Unconfirmed responses, numbered in order."""

    def __init__(self) -> None:
        self._responses: deque[Response] = deque()
        self._first = 0

    def append(self, response: Response) -> None:
        """Append a response. Raises `ResourceExhausted` if too many are unconfirmed."""
        if len(self._responses) >= MAX_RESPONSES:
            raise ResourceExhausted(f"{MAX_RESPONSES} responses wait for the producer")
        self._responses.append(response)

    def confirmed(self, count: int) -> None:
        """Drop the first `count` responses of the link."""
        while self._first < count and self._responses:
            self._responses.popleft()
            self._first += 1

    def since(self, number: int) -> list[Response]:
        """Return the responses from `number` on."""
        return [self._responses[at] for at in range(number - self._first, len(self._responses))]

    @property
    def first(self) -> int:
        """Number of the first unconfirmed response."""
        return self._first

    @property
    def count(self) -> int:
        """Number of responses so far."""
        return self._first + len(self._responses)


@dataclass(slots=True)
class IncomingLink:
    """A link from an upstream process.

    `changed` is set when there is something to answer. `producer` is the host and the address of
    the process. `overrun` is set when too many answers are unconfirmed; the link then fails.
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
        """Send a response, now or after a reconnect. Too many unconfirmed ones end the
        connection."""
        try:
            self.responses.append(response)
        except ResourceExhausted:
            self.overrun = True
        self.changed.set()
