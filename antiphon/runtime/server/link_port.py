"""The receiving end of a stage's links. It delivers incoming chunks to the stage and returns
refusals and credit.

If a chunk is malformed, only its own session fails. If a chunk is refused, the producer is
notified. Either way, the link stays open for the other sessions. Notifications that have been sent
on a link survive a reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable

from antiphon.errors import AntiphonError, Internal
from antiphon.runtime.server.outbox import Outbox
from antiphon.runtime.server.stage import Answer, Stage
from antiphon.runtime.session.facts import (
    ChunkArrived,
    ChunkMalformed,
    LinkSuspended,
    SessionFaulted,
)
from antiphon.runtime.session.instructions import Grant, Refuse
from antiphon.transport.link.incoming.connection import LinkContext
from antiphon.transport.link.incoming.link import IncomingLink
from antiphon.transport.link.incoming.links import IncomingEvents, IncomingLinks
from antiphon.transport.settings import LinkIdentity, LinkSettings, LinkState
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.wire.convert import error_to_proto
from antiphon.wire.frames import CameOnLink


class LinkPort:
    """Receives chunks from upstream processes and delivers them to a stage."""

    def __init__(self, stage: Stage, identity: LinkIdentity, settings: LinkSettings) -> None:
        self._stage = stage
        events = IncomingEvents(
            opened=self._opened,
            arrived=lambda chunks, link_id: stage.handle(
                *[ChunkArrived(chunk, link_id) for chunk in chunks]
            ),
            failed=self._failed,
            suspended=self._suspended,
            lost=self._lost,
        )
        self._links = IncomingLinks(identity, settings, events)
        self._answering: dict[str, asyncio.Task[None]] = {}

    async def serve(self, requests: AsyncIterable[CameOnLink], context: LinkContext) -> None:
        """Serve a `Link` stream."""
        await self._links.serve(requests, context)

    def states(self) -> list[LinkState]:
        """Return the state of all links, except for those that are lost."""
        return self._links.states()

    def _opened(self, link: IncomingLink) -> None:
        outbox = self._stage.link_opened(link.link_id)
        answering = answer_on(link, outbox, self._fail)
        name = f"answers on {link.link_id}"
        self._answering[link.link_id] = asyncio.create_task(answering, name=name)

    def _fail(self, session_id: str, error: AntiphonError) -> None:
        self._stage.handle(SessionFaulted(session_id, error))

    def _failed(self, link: IncomingLink, message: chunk_pb2.Chunk, fault: AntiphonError) -> None:
        # Notify the producer as well. If the session isn't open here yet, nothing else would let
        # its client know.
        session_id, edge = message.session_id, message.edge
        fault.edge = fault.edge or edge
        refusal = Refuse(link.link_id, session_id, edge, fault)
        link.respond(_response(refusal))
        self._stage.handle(ChunkMalformed(session_id, fault))

    def _suspended(self, link: IncomingLink) -> None:
        self._stage.handle(LinkSuspended(link.link_id, link.state.peer_address))

    def _lost(self, link: IncomingLink) -> None:
        self._answering.pop(link.link_id).cancel()
        self._stage.link_lost(link.link_id)


async def answer_on(
    link: IncomingLink, outbox: Outbox[Answer], fail: Callable[[str, AntiphonError], None]
) -> None:
    """Send the stage's notifications on the link. If one of them can't be sent, `fail` is called
    with its session.
    """
    async for answer in outbox:
        try:
            response = _response(answer)
        except (TypeError, ValueError) as error:
            # A value is out of range for its message field. Only this notification's session fails.
            key = answer.session_id if isinstance(answer, Refuse) else answer.key.session_id
            fail(key, Internal(f"link: can't send a response: {error}"))
        else:
            link.respond(response)


def _response(answer: Answer) -> stage_pb2.LinkResponse:
    match answer:
        case Refuse():
            return stage_pb2.LinkResponse(refusal=_refusal(answer))
        case Grant(_, key, edge, positions):
            credit = stage_pb2.LinkCredit(
                session_id=key.session_id, edge=edge, positions=positions, segment=key.segment
            )
            return stage_pb2.LinkResponse(credit=credit)


def _refusal(refuse: Refuse) -> stage_pb2.LinkRefusal:
    return stage_pb2.LinkRefusal(
        session_id=refuse.session_id,
        edge=refuse.edge,
        error=error_to_proto(refuse.error),
    )
