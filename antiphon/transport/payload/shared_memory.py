"""A payload transport that uses a shared-memory slab. The data is copied only once, and just its
location is sent over the link.

The offer contains a socket and a secret, which the consumer needs to obtain the slab. The proof is
a nonce that is stored in the slab. If the slab is full or a slot is lost, the chunk is sent over
gRPC, and the next chunk tries the slab again. This transport is never considered broken.
"""

from __future__ import annotations

import hmac
import struct

from antiphon.errors import InvalidArgument
from antiphon.transport.anonymous_file import NO_FILES, has_anonymous_files
from antiphon.transport.fd_passing import FdGiver, close_fds, receive_fds
from antiphon.transport.payload.slab import (
    AttachedSlab,
    Slab,
    SlabFallback,
)
from antiphon.transport.payload.transport import (
    Attachment,
    PayloadLost,
    PayloadReceiver,
    PayloadSender,
    Placement,
    Transport,
    WriteMessage,
    descriptor_of,
    placed,
)
from antiphon.transport.settings import LinkSettings
from antiphon.transport.thread_work import made_on_thread
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding

NAME = "shared_memory"

# The size of the slab and the secret. They are followed by the name of the socket.
_OFFER = struct.Struct("<Q16s")

# The offset and the generation of a slot.
_SLOT = struct.Struct("<QQ")


class SlabSender(PayloadSender):
    """The producer's side, which owns the slab. Raises `OSError` if the slab cannot be created."""

    name = NAME
    lost = SlabFallback.SLOT_LOST

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self._giver = FdGiver(slab.fd)

    def offer(self) -> stage_pb2.TransportOffer:
        """Return an offer that contains the socket and the secret for the slab."""
        head = _OFFER.pack(self.slab.size_bytes, self._giver.secret)
        return stage_pb2.TransportOffer(transport=NAME, descriptor=head + self._giver.name.encode())

    def proved(self, proof: bytes) -> bool:
        """Return whether the consumer has read the slab. If so, no other process can attach any
        more.
        """
        self._giver.close()
        return hmac.compare_digest(proof, self.slab.nonce)

    def place(self, encoding: Encoding) -> Placement:
        """Encode into a slot. Raises `NotPlaced` if there is no free slot."""
        slot = _SLOT.pack(*self.slab.place(encoding))
        return Placement(placed(NAME, encoding.size_bytes, slot))

    def release(self, payload: chunk_pb2.Payload) -> None:
        """Free a slot that the consumer has never looked at. All other slots are freed by the
        consumer.
        """
        _, generation = descriptor_of(payload, _SLOT)
        self.slab.release(generation)

    def close(self) -> None:
        """Close the slab."""
        self._giver.close()
        self.slab.close()


class SlabReceiver(PayloadReceiver):
    """The consumer's side. The memory stays mapped until the last view of it is deleted."""

    name = NAME

    def __init__(self, slab: AttachedSlab) -> None:
        self._slab: AttachedSlab | None = slab

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """Return a view of the slot. Raises `PayloadLost` if the slot no longer contains the
        payload.
        """
        offset, generation = descriptor_of(payload, _SLOT)
        if self._slab is None:
            raise PayloadLost(SlabFallback.SLOT_LOST, "the slab was let go")
        return self._slab.view(offset, generation, payload.size_bytes)

    def close(self) -> None:
        """Drop the slab right away.

        Each mapping uses a file descriptor, and it can take a while before a broken connection is
        garbage collected.
        """
        self._slab = None


async def attach_slab(offer: stage_pb2.TransportOffer, settings: LinkSettings) -> Attachment:
    """Attach to the offered slab and return it with its proof.

    If this process can't access the slab, `OSError` or `ValueError` is raised with the reason.
    """
    if len(offer.descriptor) <= _OFFER.size:
        raise ValueError("its offer is malformed")
    size_bytes, secret = _OFFER.unpack_from(offer.descriptor)
    name = offer.descriptor[_OFFER.size :].decode()
    (fd,) = await made_on_thread(lambda: receive_fds(name, secret, 1), close_fds)
    slab = AttachedSlab(fd, size_bytes)
    return SlabReceiver(slab), slab.nonce()


async def _make_sender(settings: LinkSettings, address: str, write: WriteMessage) -> SlabSender:
    if not has_anonymous_files():
        raise OSError(NO_FILES)
    return SlabSender(Slab(settings.slab_bytes))


def _check(settings: LinkSettings) -> None:
    if not has_anonymous_files():
        raise InvalidArgument(f"link.transport: {NO_FILES}", field="link.transport")


TRANSPORT = Transport(
    NAME, _make_sender, attach_slab, reasons=frozenset(SlabFallback), check=_check
)
