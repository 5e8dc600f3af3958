"""What a payload transport is: a blob is placed on one side and fetched on the other.

A `PayloadSender` and a `PayloadReceiver` live as long as one connection of a link.
The sender turns an encoding into a proto `Payload` that says where the blob is; the
message with it goes over gRPC, in order, whatever the transport; the receiver turns
the `Payload` back into the blob's bytes. Bytes that take a while travel ahead of the
message, so that other sessions' chunks pass them. Either side may fail at any chunk:
then that chunk goes over gRPC, which can always carry it, and the reason is counted.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from antiphon.errors import DataLoss, ResourceExhausted
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding

# Up to here a payload is always inline: a descriptor would cost as much.
INLINE_BYTES = 16 << 10
# No blob of a link is larger; a receiver reserves nothing for one that says so.
MAX_PAYLOAD_BYTES = 1 << 30


class Fallback(enum.Enum):
    """Why a chunk went over gRPC although the link has a better transport."""

    SLAB_FULL = "slab_full"
    TOO_LARGE = "too_large"
    NO_MEMORY = "no_memory"
    SLOT_LOST = "slot_lost"
    COLLECTIVE_FAILED = "collective_failed"
    COLLECTIVE_BUSY = "collective_busy"


class NotPlaced(ResourceExhausted):
    """A transport cannot take this payload now."""

    def __init__(self, reason: Fallback, message: str = "") -> None:
        super().__init__(message or reason.value)
        self.reason = reason


class PayloadLost(DataLoss):
    """A payload that was announced cannot be had."""

    def __init__(self, reason: Fallback, message: str = "") -> None:
        super().__init__(message or reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a blob is; `push`, if any, moves its bytes, and only then is `payload` true.

    `push` may raise `PayloadLost`. A sender makes one push at a time.
    """

    payload: chunk_pb2.Payload
    push: Callable[[], Awaitable[None]] | None = None


class PayloadSender(Protocol):
    """The producer's side."""

    name: str

    def offer(self) -> stage_pb2.TransportOffer:
        """What the consumer needs to attach."""
        ...

    def proved(self, proof: bytes) -> bool:
        """Whether `proof` can only come from one who has attached."""
        ...

    def pushes(self, encoding: Encoding) -> bool:
        """Whether a placement of this would have a `push`."""
        ...

    def place(self, encoding: Encoding) -> Placement:
        """Put the blob where the consumer will find it. Raises `NotPlaced`."""
        ...

    def release(self, slots: Iterable[int]) -> None:
        """The consumer never had these slots; unknown ones are ignored."""
        ...

    @property
    def broken(self) -> bool:
        """Whether the transport has to be offered anew to be of use again."""
        ...

    def close(self) -> None:
        """Give everything back; what the consumer still views stays valid."""
        ...


class PayloadReceiver(Protocol):
    """The consumer's side."""

    name: str

    def begin(self, start: stage_pb2.TransferStart) -> None:
        """The producer has begun a push. Raises `DataLoss` when it has no business to."""
        ...

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """The blob. Raises `PayloadLost` when it cannot be had and may be asked for again.

        Cancellation leaves the transport unusable; the connection ends with it.
        """
        ...

    def close(self) -> None:
        """Detach; views that were given out stay valid."""
        ...
