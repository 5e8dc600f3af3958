"""The interface of a payload transport. One side places a blob, and the other side fetches it.

A `PayloadSender` and a `PayloadReceiver` live as long as a single connection of a link. The sender
converts an encoding to a proto `Payload`, which contains the location of the blob. The message with
the `Payload` is always sent over gRPC, in order. The receiver uses the `Payload` to get the bytes
of the blob. Large payloads are transferred before the message, so that chunks of other sessions can
overtake them. Either side may fail for any chunk. In that case, the chunk is sent over gRPC, which
can carry any payload, and the reason is counted.

To add a transport, add a file to this package that defines its `Transport`, and a row to
`registry.TRANSPORTS`. Links don't depend on the name of a transport or on the content of its
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

# Payloads of up to this size are always sent inline, because a descriptor wouldn't be any cheaper.
INLINE_BYTES = 16 << 10
# The maximum size of a blob on a link. If a message claims a larger size, the receiver doesn't
# allocate memory for it.
MAX_PAYLOAD_BYTES = 1 << 30

WriteMessage = Callable[[LinkMessage], Awaitable[None]]


class NotPlaced(ResourceExhausted):
    """A transport can't accept this payload right now. The fallback is counted under `reason`."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class PayloadLost(DataLoss):
    """A payload that was announced can't be fetched. The fallback is counted under `reason`."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a blob has been placed.

    If there is a `push`, it transfers the bytes of the blob, and `payload` is valid only after
    that. `push` raises `PayloadLost` if the transfer fails, or if the consumer doesn't read
    anything for `answer_within_s` seconds, which is a setting of the link. A sender runs only one
    push at a time.
    """

    payload: chunk_pb2.Payload
    push: Callable[[], Awaitable[None]] | None = None


class PayloadSender(Protocol):
    """The producer's side. Methods that have a body in this class are optional.

    `lost` is the reason for a fallback if a payload didn't arrive. `busy` is the reason if a
    payload couldn't wait for a push.
    """

    name: str
    lost: str = ""
    busy: str = ""

    def offer(self) -> stage_pb2.TransportOffer:
        """Return an offer with everything that the consumer needs in order to attach."""
        ...

    def proved(self, proof: bytes) -> bool:
        """Return whether `proof` shows that the consumer has attached."""
        ...

    def pushes(self, encoding: Encoding) -> bool:
        """Return whether placing this encoding involves a `push`."""
        return False

    def place(self, encoding: Encoding) -> Placement:
        """Place the blob where the consumer can find it. Raises `NotPlaced` if this isn't currently
        possible.
        """
        ...

    def release(self, payload: chunk_pb2.Payload) -> None:
        """Free a payload that was placed without a push and that the consumer never fetched."""
        return

    @property
    def broken(self) -> bool:
        """Whether the transport has to be offered again before it can be used."""
        return False

    def close(self) -> None:
        """Free all resources. Any views that the consumer holds stay valid."""
        return


class PayloadReceiver(Protocol):
    """The consumer's side. Methods that have a body in this class are optional."""

    name: str

    def begin(self, payload: chunk_pb2.Payload) -> None:
        """Start receiving a push. Raises `DataLoss` if this transport doesn't use pushes."""
        raise DataLoss("link: a transfer began that was not agreed on")

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """Return the blob. Raises `PayloadLost` if it can't be fetched, in which case it may be
        requested again.

        If this call is cancelled, the transport can't be used any more, and the connection ends.
        """
        ...

    def close(self) -> None:
        """Detach. All views that have been returned stay valid."""
        return


Attachment = tuple[PayloadReceiver, bytes]
"""A receiver and the proof that it can access the sender."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A row of the registry.

    `name` is used in settings. Offers contain either the name or one of the `aliases`.
    `make_sender` is called with the peer's address and a function that writes to the link. Both
    `make_sender` and `attach` may raise `OSError`, `RuntimeError`, `ImportError` or `ValueError`,
    whose message is reported as the reason for a fallback. `reasons` lists all reasons that are
    counted. `by_default` returns whether "auto" offers this transport. `check` raises
    `InvalidArgument` if this process could never use it.
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
        """All names under which the transport can be offered."""
        return self.aliases | {self.name}


def placed(transport: str, size_bytes: int, descriptor: bytes) -> chunk_pb2.Payload:
    """Return the payload for a blob whose location is given by a transport's descriptor."""
    place = chunk_pb2.PayloadPlace(transport=transport, descriptor=descriptor)
    return chunk_pb2.Payload(size_bytes=size_bytes, placed=place)


def descriptor_of(payload: chunk_pb2.Payload, form: struct.Struct) -> tuple[Any, ...]:
    """Unpack a payload's descriptor. Raises `DataLoss` if the descriptor has the wrong size."""
    descriptor = payload.placed.descriptor
    if len(descriptor) != form.size:
        raise DataLoss(f"link: a descriptor of {len(descriptor)} bytes is malformed")
    return form.unpack(descriptor)
