"""Transports that fail at random, for tests: full, lost and broken, as real ones are."""

from __future__ import annotations

import random
from collections.abc import Iterable

from antiphon.transport.payload.framed import NAME as GRPC
from antiphon.transport.payload.framed import WriteMessage
from antiphon.transport.payload.registry import MakeSenders, make_senders
from antiphon.transport.payload.transport import (
    Fallback,
    NotPlaced,
    PayloadLost,
    PayloadSender,
    Placement,
)
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.blob import Encoding

# Far from every generation that a slab reaches.
_WRONG = 1 << 60


class FaultySender:
    """A sender of which a share `rate` of the payloads is refused, and as many get lost.

    A slot is lost by a wrong generation, a collective by leaving the group instead
    of sending.
    """

    def __init__(self, inner: PayloadSender, chance: random.Random, rate: float) -> None:
        self.name = inner.name
        self._inner = inner
        self._chance = chance
        self._rate = rate
        self._pushes = 0

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
            raise NotPlaced(Fallback.SLAB_FULL, "injected")
        placement = self._inner.place(encoding)
        if draw > 2 * self._rate:
            self._pushes += placement.push is not None
            return placement
        if placement.push is not None:
            # Not the first, so that both have joined: then the other notices at once.
            self._pushes += 1
            return Placement(placement.payload, self._leave) if self._pushes > 1 else placement
        payload = chunk_pb2.Payload()
        payload.CopyFrom(placement.payload)
        payload.slab_slot.generation += _WRONG
        return Placement(payload)

    def release(self, slots: Iterable[int]) -> None:
        """Release what the inner one knows under its own name."""
        self._inner.release(slot - _WRONG if slot >= _WRONG else slot for slot in slots)

    def close(self) -> None:
        """As the inner one."""
        self._inner.close()

    async def _leave(self) -> None:
        self._inner.close()
        raise PayloadLost(Fallback.COLLECTIVE_FAILED, "injected")


def faulty_senders(seed: int, rate: float) -> MakeSenders:
    """Makes senders as `make_senders` does, all but gRPC faulty."""
    chance = random.Random(seed)

    async def make(
        settings: LinkSettings, address: str, write: WriteMessage
    ) -> tuple[list[PayloadSender], list[str]]:
        senders, failed = await make_senders(settings, address, write)
        faulty: list[PayloadSender] = [
            sender if sender.name == GRPC else FaultySender(sender, chance, rate)
            for sender in senders
        ]
        return faulty, failed

    return make
