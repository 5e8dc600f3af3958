"""Places the payloads of chunks for one connection.

A payload is sent through the negotiated transport if possible, and through the link itself
otherwise. If the consumer can't fetch a payload, it is sent again through the link. Large payloads
are transferred before their chunk, so that chunks of other sessions can overtake them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from antiphon.transport.link.outgoing.agreement import ProducerAgreement
from antiphon.transport.link.outgoing.pushes import Pushes
from antiphon.transport.link.outgoing.send_log import Outgoing
from antiphon.transport.payload.transport import (
    INLINE_BYTES,
    NotPlaced,
    PayloadLost,
    PayloadSender,
)
from antiphon.transport.settings import LinkState
from antiphon.v1 import chunk_pb2
from antiphon.wire.blob import Encoding

log = logging.getLogger(__name__)


class Payloads:
    """The payload placements of one connection.

    `changed` is an event of the link, and is set when a transfer is complete.
    """

    def __init__(
        self, agreement: ProducerAgreement, state: LinkState, changed: asyncio.Event
    ) -> None:
        self._agreement = agreement
        self._state = state
        self._pushes = Pushes(changed)
        self._placed: dict[Outgoing, chunk_pb2.Payload] = {}
        self._only_fallback: set[Outgoing] = set()

    def of(self, chunk: Outgoing, encoding: Encoding) -> chunk_pb2.Payload | None:
        """Return the payload if it has been placed. Returns None if its transfer is still in
        progress or can't start yet.
        """
        if encoding.size_bytes <= INLINE_BYTES:
            return self._place(self._agreement.fallback, chunk, encoding)
        if (kept := self._placed.get(chunk)) is not None:
            return kept
        if (push := self._pushes.of(chunk)) is not None:
            try:
                payload = self._pushes.settle(push)
            except PayloadLost as error:
                log.warning("link to %s: %s", self._state.peer_address, error.message)
                self._fall_back(chunk, error.reason)
            else:
                if payload is not None:
                    self._state.count_payload(push.transport, encoding.size_bytes)
                return payload
        chosen = self._agreement.chosen
        if self._suits(chosen, chunk, encoding):
            try:
                return self._place(chosen, chunk, encoding)
            except NotPlaced as error:
                log.debug("link to %s: %s", self._state.peer_address, error.message)
                self._fall_back(chunk, error.reason)
        return self._place(self._agreement.fallback, chunk, encoding)

    def lost(self, chunk: Outgoing) -> None:
        """Use the fallback for a chunk, because the consumer couldn't fetch its payload."""
        self._only_fallback.add(chunk)
        if (payload := self._placed.pop(chunk, None)) is not None:
            self._agreement.chosen.release(payload)

    def arrived(self, chunks: Iterable[Outgoing]) -> None:
        """Forget the payloads of chunks that have been acknowledged."""
        for chunk in chunks:
            self._placed.pop(chunk, None)
            self._only_fallback.discard(chunk)

    async def close(self) -> None:
        """Cancel all transfers that are in progress."""
        await self._pushes.close()

    def _suits(self, chosen: PayloadSender, chunk: Outgoing, encoding: Encoding) -> bool:
        if chunk in self._only_fallback:
            return False
        if chosen is not self._agreement.fallback and self._pushes.is_stuck(chosen.name):
            self._fall_back(chunk, chosen.busy)
            return False
        return True

    def _place(
        self, sender: PayloadSender, chunk: Outgoing, encoding: Encoding
    ) -> chunk_pb2.Payload | None:
        if sender.pushes(encoding) and self._pushes.is_busy(sender.name):
            return None
        placement = sender.place(encoding)
        if placement.push is not None:
            self._pushes.begin(sender.name, chunk, placement)
            return None
        self._state.count_payload(sender.name, encoding.size_bytes)
        if placement.payload.HasField("placed"):
            self._placed[chunk] = placement.payload
        return placement.payload

    def _fall_back(self, chunk: Outgoing, reason: str) -> None:
        self._only_fallback.add(chunk)
        self._state.count_fallback(reason)
        self._agreement.failed()
