"""Offers and selects the producer's payload transports for one connection.

If a transport breaks, it is offered again after a while. The offer always includes the link itself,
so that payloads in flight aren't lost. A transport lives as long as its connection.
"""

from __future__ import annotations

import asyncio
import logging

from antiphon.errors import FailedPrecondition
from antiphon.transport.payload.registry import FallbackSender, MakeSenders
from antiphon.transport.payload.transport import PayloadSender, WriteMessage
from antiphon.transport.settings import LinkSettings, LinkState
from antiphon.v1 import stage_pb2

# The maximum number of reasons that are stored for a consumer, and the maximum length of each.
MAX_REASONS, MAX_REASON = 8, 500
# The delay before a broken transport is offered again, in seconds. It doubles each time, up to the
# second value.
FIRST_OFFER_S = 1.0
LAST_OFFER_S = 60.0

log = logging.getLogger(__name__)


class ProducerAgreement:
    """Selects a sender for each payload.

    `chosen` is the negotiated transport, and `fallback` is the link itself. They may be the same
    object. `changed` is an event of the link, and is set when a call to `offer_anew` is `due`.
    """

    def __init__(
        self,
        settings: LinkSettings,
        state: LinkState,
        make_senders: MakeSenders,
        write: WriteMessage,
        changed: asyncio.Event,
    ) -> None:
        self.fallback: PayloadSender = FallbackSender(write)
        self.chosen: PayloadSender = self.fallback
        self._settings = settings
        self._state = state
        self._make_senders = make_senders
        self._write = write
        self._changed = changed
        self._senders: list[PayloadSender] = []
        self._failed: list[str] = []
        self._in_s = FIRST_OFFER_S
        self._timer: asyncio.TimerHandle | None = None
        self.due = self._anew = False

    async def offers(self) -> list[stage_pb2.TransportOffer]:
        """Create the transports that can currently be offered. Raises `FailedPrecondition` if there
        are none.
        """
        made, self._failed = await self._make_senders(
            self._settings, self._state.peer_address, self._write
        )
        self._senders += made
        return [sender.offer() for sender in made]

    def accepted(self, accept: stage_pb2.LinkAccept) -> None:
        """Use the transport that the consumer has chosen, and close the rest. Raises
        `FailedPrecondition` if the choice is invalid.
        """
        # If several transports have this name, all but the last are broken.
        matching = [sender for sender in self._senders if sender.name == accept.transport]
        if not matching or not matching[-1].proved(accept.proof):
            raise FailedPrecondition(f"the peer selected {accept.transport!r} without verifying it")
        self.chosen = matching[-1]
        for other in self._senders:
            if other is not self.chosen:
                other.close()
        self._senders = [self.chosen]
        if self.chosen.name == self.fallback.name:
            self.fallback = self.chosen
            if self._anew:
                self._offer_later()
        self._state.transport = self.chosen.name
        told = (reason[:MAX_REASON] for reason in accept.refused[:MAX_REASONS])
        self._state.refused = (*self._failed, *told)
        for reason in self._state.refused:
            log.info("link to %s: %s", self._state.peer_address, reason)

    def failed(self) -> None:
        """Schedule a new offer if the chosen transport has broken."""
        if self.chosen.broken:
            self._offer_later()

    async def offer_anew(self) -> None:
        """Offer the link itself and all transports that are available."""
        self.due, self._anew = False, True
        try:
            offers = await self.offers()
        except FailedPrecondition as error:
            log.info("link to %s: %s", self._state.peer_address, error.message)
            self._offer_later()
            return
        self._senders.insert(0, self.fallback)
        offers.append(self.fallback.offer())
        await self._write(stage_pb2.LinkRequest(offers=stage_pb2.TransportOffers(offers=offers)))

    def close(self) -> None:
        """Close all transports."""
        if self._timer is not None:
            self._timer.cancel()
        for sender in self._senders:
            sender.close()

    def _offer_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._in_s, self._let_offer)
            self._in_s = min(2 * self._in_s, LAST_OFFER_S)

    def _let_offer(self) -> None:
        # An offer may have been accepted in the meantime.
        self._timer = None
        self.due = self.chosen.broken or self.chosen is self.fallback
        self._changed.set()
