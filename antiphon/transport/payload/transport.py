"""What a payload transport is: a blob is placed on one side and fetched on the other.

A `PayloadSender` and a `PayloadReceiver` live as long as one connection of a link.
The sender turns an encoding into a proto `Payload` that says where the blob is; the
message with it goes over gRPC, in order, whatever the transport; the receiver turns
the `Payload` back into the blob's bytes. Bytes that take a while travel ahead of the
message, so that other sessions' chunks pass them. Either side may fail at any chunk:
then that chunk goes over gRPC, which can always carry it, and the reason is counted.

A transport is one file here, which ends with its `Transport`, and one row of
`registry.TRANSPORTS`. Links know neither its name nor what its descriptors say.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from antiphon.errors import DataLoss, ResourceExhausted
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding
from antiphon.wire.frames import LinkMessage

# Up to here a payload is always inline: a descriptor would cost as much.
INLINE_BYTES = 16 << 10
# No blob of a link is larger; a receiver reserves nothing for one that says so.
MAX_PAYLOAD_BYTES = 1 << 30

WriteMessage = Callable[[LinkMessage], Awaitable[None]]


class NotPlaced(ResourceExhausted):
    """A transport cannot take this payload now; fallbacks are counted by `reason`."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class PayloadLost(DataLoss):
    """A payload that was announced cannot be had; fallbacks are counted by `reason`."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a blob is; `push`, if any, moves its bytes, and only then is `payload` true.

    `push` may raise `PayloadLost`, and does so when the consumer takes nothing for a while, such as
    the link's `answer_within_s`. A sender makes one push at a time.
    """

    payload: chunk_pb2.Payload
    push: Callable[[], Awaitable[None]] | None = None


class PayloadSender(Protocol):
    """The producer's side; what has a body here need not be overridden.

    Fallbacks are counted by `lost` when a payload did not arrive, and by `busy` when
    others do not wait for a push any longer.
    """

    name: str
    lost: str = ""
    busy: str = ""

    def offer(self) -> stage_pb2.TransportOffer:
        """What the consumer needs to attach."""
        ...

    def proved(self, proof: bytes) -> bool:
        """Whether `proof` can only come from one who has attached."""
        ...

    def pushes(self, encoding: Encoding) -> bool:
        """Whether a placement of this would have a `push`."""
        return False

    def place(self, encoding: Encoding) -> Placement:
        """Put the blob where the consumer will find it. Raises `NotPlaced`."""
        ...

    def release(self, payload: chunk_pb2.Payload) -> None:
        """The consumer never had this, which was placed without a push."""
        return

    @property
    def broken(self) -> bool:
        """Whether the transport has to be offered anew to be of use again."""
        return False

    def close(self) -> None:
        """Give everything back; what the consumer still views stays valid."""
        return


class PayloadReceiver(Protocol):
    """The consumer's side; what has a body here need not be overridden."""

    name: str

    def begin(self, payload: chunk_pb2.Payload) -> None:
        """The producer has begun a push. Raises `DataLoss` when it has no business to."""
        raise DataLoss("link: a transfer began that was not agreed on")

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """The blob. Raises `PayloadLost` when it cannot be had and may be asked for again.

        Cancellation leaves the transport unusable; the connection ends with it.
        """
        ...

    def close(self) -> None:
        """Detach; views that were given out stay valid."""
        return


Attachment = tuple[PayloadReceiver, bytes]
"""A receiver, and the proof that it reaches its sender."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A row of the registry.

    `name` is what settings say; offers have it or one of `aliases`. `make_sender` gets the
    peer's address and what writes to the link. It and `attach` raise `OSError`,
    `RuntimeError`, `ImportError` or `ValueError`, whose words are told as the reason to do
    without. Fallbacks are counted by `reasons`. `by_default` says whether "auto" offers it;
    `check` raises `InvalidArgument` where this process can never have it.
    """

    name: str
    make_sender: Callable[[LinkSettings, str, WriteMessage], Awaitable[PayloadSender]]
    attach: Callable[[stage_pb2.TransportOffer, LinkSettings], Awaitable[Attachment]]
    aliases: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    by_default: Callable[[LinkSettings], bool] = lambda settings: True
    check: Callable[[LinkSettings], None] = lambda settings: None

    @property
    def names(self) -> frozenset[str]:
        """What its offers may be called."""
        return self.aliases | {self.name}


def placed(transport: str, size_bytes: int, descriptor: bytes) -> chunk_pb2.Payload:
    """A payload that a transport has put where its descriptor says."""
    place = chunk_pb2.PayloadPlace(transport=transport, descriptor=descriptor)
    return chunk_pb2.Payload(size_bytes=size_bytes, placed=place)


def descriptor_of(payload: chunk_pb2.Payload, form: struct.Struct) -> tuple[Any, ...]:
    """The numbers of a payload's descriptor. Raises `DataLoss` when it has another form."""
    descriptor = payload.placed.descriptor
    if len(descriptor) != form.size:
        raise DataLoss(f"link: a descriptor of {len(descriptor)} bytes is malformed")
    return form.unpack(descriptor)
