"""Attaches, uses and replaces the consumer's payload transports for one connection."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.errors import DataLoss, FailedPrecondition
from antiphon.transport.payload.registry import FALLBACK, Attach, Attached, FallbackReceiver
from antiphon.transport.payload.transport import PayloadReceiver
from antiphon.transport.settings import LinkSettings, LinkState
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.frames import Frame


class ConsumerAgreement:
    """Receives payloads, both through the negotiated transport and through the link itself."""

    def __init__(self, settings: LinkSettings, state: LinkState, attach: Attach) -> None:
        self._settings = settings
        self._state = state
        self._attach_best = attach
        self._fallback = FallbackReceiver()
        self._agreed: PayloadReceiver = self._fallback

    async def attach(self, offers: Iterable[stage_pb2.TransportOffer]) -> stage_pb2.LinkAccept:
        """Attach to the best of the offered transports. Raises `FailedPrecondition` if none of them
        work.
        """
        return self._take(await self._attach_best(offers, self._settings))

    async def attach_anew(self, offers: Iterable[stage_pb2.TransportOffer]) -> stage_pb2.LinkAccept:
        """Replace a broken transport with one of the new offers. If none of them work, use the link
        itself.
        """
        try:
            return await self.attach(offers)
        except FailedPrecondition as error:
            return self._take(Attached(self._fallback, b"", (error.message,)))

    def take(self, frame: Frame) -> None:
        """Add a payload frame that arrived on the link. Raises `DataLoss` if the frame was not
        expected.
        """
        self._fallback.take(frame)

    def begin(self, payload: chunk_pb2.Payload) -> None:
        """Start receiving a payload that is pushed. Raises `DataLoss` if its description is
        invalid.
        """
        self._receiver(payload.placed.transport).begin(payload)

    async def fetch(self, payload: chunk_pb2.Payload) -> tuple[str, bytes | memoryview]:
        """Return the bytes of a payload, and the name of the transport through which it was
        received.

        Raises `PayloadLost` if the payload can't be fetched, and `DataLoss` if its descriptor is
        inconsistent.
        """
        receiver = self._receiver(payload.placed.transport)
        return receiver.name, await receiver.fetch(payload)

    def close(self) -> None:
        """Detach from the transport."""
        self._agreed.close()

    def _take(self, attached: Attached) -> stage_pb2.LinkAccept:
        self._agreed.close()
        self._agreed = attached.receiver
        self._state.transport = attached.receiver.name
        self._state.refused = attached.refused
        return stage_pb2.LinkAccept(
            transport=attached.receiver.name, proof=attached.proof, refused=attached.refused
        )

    def _receiver(self, transport: str) -> PayloadReceiver:
        if transport == FALLBACK.name:
            return self._fallback
        if transport != self._agreed.name:
            raise DataLoss(f"link: the payload uses {transport!r}, which was not negotiated")
        return self._agreed
