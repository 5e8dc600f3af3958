"""Payloads through a slab: descriptors on the link, bytes copied once, views at the far end."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable

from antiphon.errors import DataLoss
from antiphon.transport.payload.aside import made_aside
from antiphon.transport.payload.fd_passing import FdGiver, receive_fd
from antiphon.transport.payload.slab import AttachedSlab, Slab
from antiphon.transport.payload.transport import Placement
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding

NAME = "shared_memory"


class SlabSender:
    """The producer's side; owns the slab. Raises `OSError` where it cannot be had."""

    name = NAME
    broken = False

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self._giver = FdGiver(slab.fd)

    def offer(self) -> stage_pb2.TransportOffer:
        """Where to ask for the slab, and with what secret."""
        return stage_pb2.TransportOffer(
            transport=NAME,
            locator=self._giver.name,
            nonce=self._giver.secret,
            size_bytes=self.slab.size_bytes,
        )

    def proved(self, proof: bytes) -> bool:
        """Whether the consumer has read the slab; nobody else can attach after this."""
        self._giver.close()
        return hmac.compare_digest(proof, self.slab.nonce)

    def pushes(self, encoding: Encoding) -> bool:
        """Never: the bytes are there when the slot is written."""
        return False

    def place(self, encoding: Encoding) -> Placement:
        """Encode into a slot. Raises `NotPlaced`."""
        offset, generation = self.slab.place(encoding)
        slot = chunk_pb2.SlabSlot(offset_bytes=offset, generation=generation)
        return Placement(chunk_pb2.Payload(size_bytes=encoding.size_bytes, slab_slot=slot))

    def release(self, slots: Iterable[int]) -> None:
        """Slots that the consumer never had may be used again; others it marks itself."""
        for generation in slots:
            self.slab.release(generation)

    def close(self) -> None:
        """Drop the slab."""
        self._giver.close()
        self.slab.close()


class SlabReceiver:
    """The consumer's side."""

    name = NAME

    def __init__(self, slab: AttachedSlab) -> None:
        self._slab = slab

    def begin(self, start: stage_pb2.TransferStart) -> None:
        """There are no transfers. Raises `DataLoss`."""
        raise DataLoss("link: a transfer began that was not agreed on")

    async def fetch(self, payload: chunk_pb2.Payload) -> memoryview:
        """A view of the slot. Raises `PayloadLost`."""
        slot = payload.slab_slot
        return self._slab.view(slot.offset_bytes, slot.generation, payload.size_bytes)

    def close(self) -> None:
        """Nothing to do: the mapping goes with the last view of it."""


async def attach_slab(
    offer: stage_pb2.TransportOffer,
) -> tuple[SlabReceiver, bytes]:
    """The offered slab and the proof that it was read.

    Raises `OSError` or `ValueError`, which say why this process cannot reach it.
    """
    fd = await made_aside(lambda: receive_fd(offer.locator, offer.nonce), os.close)
    slab = AttachedSlab(fd, offer.size_bytes)
    return SlabReceiver(slab), slab.nonce()
