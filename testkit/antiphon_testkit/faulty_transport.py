"""Transports that fail at random, for use in tests. They can be full, lose payloads, or break, like
real ones.
"""

from __future__ import annotations

import random

from antiphon.transport.payload.registry import FALLBACK, MakeSenders, make_senders
from antiphon.transport.payload.transport import (
    NotPlaced,
    PayloadLost,
    PayloadSender,
    Placement,
    WriteMessage,
    placed,
)
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding


class FaultySender(PayloadSender):
    """A sender that rejects payloads at the given `rate`, and loses payloads at the same rate.

    To lose a payload, the sender changes the last byte of its descriptor, which gives a generation
    that no slot of the slab ever reaches. A pushed payload is lost by closing the transport instead
    of sending it.
    """

    def __init__(self, inner: PayloadSender, chance: random.Random, rate: float) -> None:
        self.name, self.lost, self.busy = inner.name, inner.lost, inner.busy
        self._inner = inner
        self._chance = chance
        self._rate = rate
        self._pushes = 0
        self._wrong: dict[bytes, chunk_pb2.Payload] = {}

    @property
    def broken(self) -> bool:
        """Forwarded to the inner sender."""
        return self._inner.broken

    def offer(self) -> stage_pb2.TransportOffer:
        """Forwarded to the inner sender."""
        return self._inner.offer()

    def proved(self, proof: bytes) -> bool:
        """Forwarded to the inner sender."""
        return self._inner.proved(proof)

    def pushes(self, encoding: Encoding) -> bool:
        """Forwarded to the inner sender."""
        return self._inner.pushes(encoding)

    def place(self, encoding: Encoding) -> Placement:
        """Place the payload, reject it, or place it incorrectly. Raises `NotPlaced` if the payload
        is rejected.
        """
        draw = self._chance.random()
        if draw < self._rate:
            raise NotPlaced("injected")
        placement = self._inner.place(encoding)
        if draw > 2 * self._rate:
            self._pushes += placement.push is not None
            return placement
        if placement.push is not None:
            # This is never the first payload, because both ends must have joined for the other end
            # to notice immediately.
            self._pushes += 1
            return Placement(placement.payload, self._leave) if self._pushes > 1 else placement
        right = placement.payload
        descriptor = right.placed.descriptor
        wrong = descriptor[:-1] + bytes([descriptor[-1] ^ 0x0F])
        self._wrong[wrong] = right
        return Placement(placed(self.name, right.size_bytes, wrong))

    def release(self, payload: chunk_pb2.Payload) -> None:
        """Release the payload under the name that the inner sender uses."""
        self._inner.release(self._wrong.pop(payload.placed.descriptor, payload))

    def close(self) -> None:
        """Close the inner sender."""
        self._inner.close()

    async def _leave(self) -> None:
        self._inner.close()
        raise PayloadLost(self.lost, "injected")


def faulty_senders(seed: int, rate: float) -> MakeSenders:
    """Return a function like `make_senders` that creates faulty senders for all transports except
    gRPC.
    """
    chance = random.Random(seed)

    async def make(
        settings: LinkSettings, address: str, write: WriteMessage
    ) -> tuple[list[PayloadSender], list[str]]:
        senders, failed = await make_senders(settings, address, write)
        faulty: list[PayloadSender] = [
            sender if sender.name == FALLBACK.name else FaultySender(sender, chance, rate)
            for sender in senders
        ]
        return faulty, failed

    return make
