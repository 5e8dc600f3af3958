"""The consumer's state of a link, including its responses. It outlives individual connections.

Received chunks are counted. If a chunk's number is below the count, the chunk is a duplicate and is
dropped. Refusals and credits must not be lost, so they are kept until the producer has confirmed
them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from antiphon.errors import DataLoss, ResourceExhausted
from antiphon.transport.response_log import ResponseLog
from antiphon.transport.settings import LinkState
from antiphon.v1 import stage_pb2


def is_next(number: int, received: int) -> bool:
    """Return whether this chunk is the next one to be received. Returns False if it is a duplicate.

    Raises `DataLoss` if an earlier chunk is missing.
    """
    if number > received:
        raise DataLoss(f"link: received chunk {number} instead of chunk {received}")
    return number == received


@dataclass(slots=True)
class IncomingLink:
    """A link from an upstream process.

    `changed` is set when there is a response to send. `producer` contains the host and the address
    of the upstream process. `overrun` is set when too many responses are unconfirmed, which makes
    the link fail. `ring_damaged` is set when a ring of the link was damaged, and prevents
    the use of another one.
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
    ring_damaged: bool = False

    def respond(self, response: stage_pb2.LinkResponse) -> None:
        """Send a response, either now or after a reconnect. If too many responses are unconfirmed,
        the connection ends.
        """
        try:
            self.responses.append(response)
        except ResourceExhausted:
            self.overrun = True
        self.changed.set()
