"""The interface of a payload transport. One side places a blob, and the other side fetches it.

A `PayloadSender` and a `PayloadReceiver` live as long as one connection of a link. The sender
converts an encoding to a proto `Payload`, which specifies the location of the blob. The message
that contains the `Payload` is always sent over gRPC, in order. The receiver converts the `Payload`
back to the bytes of the blob. Large payloads are transferred ahead of the message, so that chunks
of other sessions can overtake them. Either side may fail for any chunk. The chunk is then sent over
gRPC, which can carry any payload, and the reason is counted.

To add a transport, add a file to this package that ends with its `Transport`, and a row to
`registry.TRANSPORTS`. Links depend neither on the name of a transport nor on the content of its
descriptors.
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

# Payloads of up to this size are always sent inline, because a descriptor would cost as much.
INLINE_BYTES = 16 << 10
# The maximum size of a blob on a link. If a message claims a larger size, the receiver does not
# allocate memory for it.
MAX_PAYLOAD_BYTES = 1 << 30

WriteMessage = Callable[[LinkMessage], Awaitable[None]]


class NotPlaced(ResourceExhausted):
    """A transport cannot accept this payload now. The fallback is counted under `reason`."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class PayloadLost(DataLoss):
    """A payload that was announced cannot be fetched. The fallback is counted under `reason`."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Placement:
    """The location of a blob.

    If there is a `push`, it transfers the blob's bytes, and `payload` is only valid after that.
    `push` raises `PayloadLost` if the transfer fails, or if the consumer reads nothing for
    `answer_within_s` seconds, which is a setting of the link. A sender runs one push at a time.
    """

    payload: chunk_pb2.Payload
    push: Callable[[], Awaitable[None]] | None = None


class PayloadSender(Protocol):
    """The producer's side. Methods that have a body here are optional.

    `lost` is the reason under which fallbacks are counted if a payload did not arrive. `busy` is
    the reason if a payload did not wait for a push.
    """

    name: str
    lost: str = ""
    busy: str = ""

    def offer(self) -> stage_pb2.TransportOffer:
        """Return an offer that contains what the consumer needs to attach."""
        ...

    def proved(self, proof: bytes) -> bool:
        """Return whether `proof` shows that the consumer has attached."""
        ...

    def pushes(self, encoding: Encoding) -> bool:
        """Return whether the placement of this encoding has a `push`."""
        return False

    def place(self, encoding: Encoding) -> Placement:
        """Put the blob where the consumer can find it. Raises `NotPlaced` if this is not possible
        now.
        """
        ...

    def release(self, payload: chunk_pb2.Payload) -> None:
        """Free a payload that was placed without a push and that the consumer has never fetched."""
        return

    @property
    def broken(self) -> bool:
        """Whether the transport cannot be used until it is offered again."""
        return False

    def close(self) -> None:
        """Free all resources. Views that the consumer holds remain valid."""
        return


class PayloadReceiver(Protocol):
    """The consumer's side. Methods that have a body here are optional."""

    name: str

    def begin(self, payload: chunk_pb2.Payload) -> None:
        """Start to receive a push. Raises `DataLoss` if no push was agreed on."""
        raise DataLoss("link: a transfer began that was not agreed on")

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """Return the blob. Raises `PayloadLost` if it cannot be fetched. It may then be requested
        again.

        If this call is cancelled, the transport can no longer be used, and the connection ends.
        """
        ...

    def close(self) -> None:
        """Detach. Views that have been returned so far remain valid."""
        return


Attachment = tuple[PayloadReceiver, bytes]
"""A receiver, and the proof that it has access to the sender."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A row of the registry.

    `name` is used in settings. Offers contain the name or one of the `aliases`. `make_sender` is
    called with the address of the peer and a function that writes to the link. `make_sender` and
    `attach` may raise `OSError`, `RuntimeError`, `ImportError` or `ValueError`. The error message
    is then reported as the reason for a fallback. `reasons` lists the reasons that are counted.
    `by_default` returns whether "auto" offers the transport. `check` raises `InvalidArgument` if
    this process can never use it.
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
        """All names that are accepted in offers."""
        return self.aliases | {self.name}


def placed(transport: str, size_bytes: int, descriptor: bytes) -> chunk_pb2.Payload:
    """Return the payload for a blob at the location that a transport's descriptor specifies."""
    place = chunk_pb2.PayloadPlace(transport=transport, descriptor=descriptor)
    return chunk_pb2.Payload(size_bytes=size_bytes, placed=place)


def descriptor_of(payload: chunk_pb2.Payload, form: struct.Struct) -> tuple[Any, ...]:
    """Unpack the descriptor of a payload. Raises `DataLoss` if its size is wrong."""
    descriptor = payload.placed.descriptor
    if len(descriptor) != form.size:
        raise DataLoss(f"link: a descriptor of {len(descriptor)} bytes is malformed")
    return form.unpack(descriptor)
