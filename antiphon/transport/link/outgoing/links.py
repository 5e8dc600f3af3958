"""All links from this process to downstream processes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import grpc

from antiphon.errors import AntiphonError
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.transport.link.outgoing.link import LinkEvents, OutgoingLink
from antiphon.transport.settings import LinkIdentity, LinkSettings, LinkState, Peer
from antiphon.values.chunk import Chunk

Connect = Callable[[str, str], grpc.aio.Channel]
"""A function that opens a channel to a process that consumes an edge. It receives the process's
address and the edge.
"""


def connect_in_clear(address: str, edge: str) -> grpc.aio.Channel:
    """Return an unencrypted channel to a peer that isn't authenticated."""
    return grpc.aio.insecure_channel(address, CHANNEL_OPTIONS)


class OutgoingLinks:
    """Links to downstream processes, with one link per process. A link is opened by the first chunk
    for its process.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        settings: LinkSettings,
        events: LinkEvents,
        connect: Connect = connect_in_clear,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._owner = events
        self._connect = connect
        self._events = replace(events, lost=self._lost)
        self._links: dict[Peer, OutgoingLink] = {}

    def send_nowait(self, peer: Peer, chunk: Chunk) -> None:
        """Queue a chunk on the link to a process. Raises `ResourceExhausted` if too much
        is queued.
        """
        link = self._links.get(peer)
        if link is None:
            open_channel = partial(self._connect, peer.address, chunk.edge)
            link = OutgoingLink(
                peer, self._identity, self._settings, self._events, open_channel=open_channel
            )
            self._links[peer] = link
        link.send_nowait(chunk)

    def has_unacknowledged(self, session_id: str) -> bool:
        """Return whether a session has any unacknowledged chunks."""
        return any(session_id in link.sessions for link in self._links.values())

    def states(self) -> list[LinkState]:
        """Return the state of all links, except for those that are lost."""
        return [link.state for link in self._links.values()]

    async def close(self) -> None:
        """Close all links."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()

    def _lost(self, peer: Peer, error: AntiphonError, sessions: Collection[str]) -> None:
        self._links.pop(peer, None)
        self._owner.lost(peer, error, sessions)
