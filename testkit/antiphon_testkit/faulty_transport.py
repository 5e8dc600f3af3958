"""Transports that fail at random, for tests: full, lost and broken, as real ones are."""

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
    """A sender that rejects a share `rate` of the payloads and loses the same share.

    It loses a payload by changing the last byte of its descriptor (a generation that no slot of the
    slab reaches), and a pushed payload by closing the transport instead of sending.
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
        """As the inner one."""
        return self._inner.broken

    def offer(self) -> stage_pb2.TransportOffer:
        """As the inner one."""
        return self._inner.offer()

    def proved(self, proof: bytes) -> bool:
        """As the inner one."""
        return self._inner.proved(proof)

    def pushes(self, encoding: Encoding) -> bool:
        """As the inner one."""
        return self._inner.pushes(encoding)

    def place(self, encoding: Encoding) -> Placement:
        """Place, refuse, or place wrongly. Raises `NotPlaced`."""
        draw = self._chance.random()
        if draw < self._rate:
            raise NotPlaced("injected")
        placement = self._inner.place(encoding)
        if draw > 2 * self._rate:
            self._pushes += placement.push is not None
            return placement
        if placement.push is not None:
            # Not the first, so that both have joined: then the other notices at once.
            self._pushes += 1
            return Placement(placement.payload, self._leave) if self._pushes > 1 else placement
        right = placement.payload
        descriptor = right.placed.descriptor
        wrong = descriptor[:-1] + bytes([descriptor[-1] ^ 0x0F])
        self._wrong[wrong] = right
        return Placement(placed(self.name, right.size_bytes, wrong))

    def release(self, payload: chunk_pb2.Payload) -> None:
        """Release what the inner one knows under its own name."""
        self._inner.release(self._wrong.pop(payload.placed.descriptor, payload))

    def close(self) -> None:
        """As the inner one."""
        self._inner.close()

    async def _leave(self) -> None:
        self._inner.close()
        raise PayloadLost(self.lost, "injected")


def faulty_senders(seed: int, rate: float) -> MakeSenders:
    """Makes senders as `make_senders` does, all but gRPC faulty."""
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
