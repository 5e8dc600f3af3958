"""The interface of a payload transport: one side places a blob, the other fetches it.

A `PayloadSender` and a `PayloadReceiver` live as long as one connection of a link. The sender
converts an encoding to a proto `Payload` that says where the blob is. The message with it is sent
over gRPC, in order, whatever the transport. The receiver converts the `Payload` back to the blob's
bytes. Large payloads are transferred ahead of the message, so that other sessions' chunks overtake
them. Either side may fail at any chunk. That chunk is then sent over gRPC, which can carry any
payload, and the reason is counted.

A transport is one file in this package, which ends with its `Transport`, and one row of
`registry.TRANSPORTS`. Links depend on neither its name nor the content of its descriptors.
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

# Payloads up to this size are always inline, since a descriptor would cost as much.
INLINE_BYTES = 16 << 10
# Largest blob of a link. A receiver allocates nothing for a larger claim.
MAX_PAYLOAD_BYTES = 1 << 30

WriteMessage = Callable[[LinkMessage], Awaitable[None]]


class NotPlaced(ResourceExhausted):
    """A transport cannot accept this payload now. `reason` counts the fallback."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class PayloadLost(DataLoss):
    """An announced payload cannot be fetched. `reason` counts the fallback."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a blob is.

    `push`, if any, transfers its bytes; `payload` is valid only after that. `push` raises
    `PayloadLost` if the transfer fails, or if the consumer does not read for the link's
    `answer_within_s`. A sender runs one push at a time.
    """

    payload: chunk_pb2.Payload
    push: Callable[[], Awaitable[None]] | None = None


class PayloadSender(Protocol):
    """The producer's side. Methods with a body here are optional.

    `lost` counts fallbacks for payloads that did not arrive, `busy` those that did not wait for a
    push.
    """

    name: str
    lost: str = ""
    busy: str = ""

    def offer(self) -> stage_pb2.TransportOffer:
        """Return what the consumer needs to attach."""
        ...

    def proved(self, proof: bytes) -> bool:
        """Return whether `proof` shows that the consumer has attached."""
        ...

    def pushes(self, encoding: Encoding) -> bool:
        """Return whether a placement of this encoding has a `push`."""
        return False

    def place(self, encoding: Encoding) -> Placement:
        """Put the blob where the consumer will find it. Raises `NotPlaced`."""
        ...

    def release(self, payload: chunk_pb2.Payload) -> None:
        """Free a payload placed without a push that the consumer never fetched."""
        return

    @property
    def broken(self) -> bool:
        """Whether the transport is unusable until it is offered again."""
        return False

    def close(self) -> None:
        """Free all resources. Views held by the consumer stay valid."""
        return


class PayloadReceiver(Protocol):
    """The consumer's side. Methods with a body here are optional."""

    name: str

    def begin(self, payload: chunk_pb2.Payload) -> None:
        """Start receiving a push. Raises `DataLoss` if none was agreed on."""
        raise DataLoss("link: a transfer began that was not agreed on")

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """Return the blob. Raises `PayloadLost` if it cannot be fetched and may be requested again.

        Cancellation leaves the transport unusable; the connection ends with it.
        """
        ...

    def close(self) -> None:
        """Detach. Views returned so far stay valid."""
        return


Attachment = tuple[PayloadReceiver, bytes]
"""A receiver and its proof of access to the sender."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A row of the registry.

    `name` is used in settings; offers use it or one of `aliases`. `make_sender` is called with the
    peer's address and a function that writes to the link. It and `attach` raise `OSError`,
    `RuntimeError`, `ImportError` or `ValueError`; the message is reported as the reason of a
    fallback. `reasons` lists the counted reasons. `by_default` returns whether "auto" offers the
    transport. `check` raises `InvalidArgument` if this process can never use it.
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
        """Names accepted in offers."""
        return self.aliases | {self.name}


def placed(transport: str, size_bytes: int, descriptor: bytes) -> chunk_pb2.Payload:
    """Return the payload for a blob at a transport's descriptor."""
    place = chunk_pb2.PayloadPlace(transport=transport, descriptor=descriptor)
    return chunk_pb2.Payload(size_bytes=size_bytes, placed=place)


def descriptor_of(payload: chunk_pb2.Payload, form: struct.Struct) -> tuple[Any, ...]:
    """Unpack a payload's descriptor. Raises `DataLoss` if it has another size."""
    descriptor = payload.placed.descriptor
    if len(descriptor) != form.size:
        raise DataLoss(f"link: a descriptor of {len(descriptor)} bytes is malformed")
    return form.unpack(descriptor)
