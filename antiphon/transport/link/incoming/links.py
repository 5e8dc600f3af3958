"""The consumer's ends of all links into this process.

If a stream breaks, its link is suspended, and the producer can resume it within the resume window.
A link is lost exactly once. This happens when the resume window is over, or when the producer says
goodbye. It also happens when a restarted producer connects from the same address, because this
means that the previous process has died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass

import grpc

from antiphon.errors import AntiphonError, DataLoss, InvalidArgument, ResourceExhausted, Unavailable
from antiphon.transport.link.incoming.connection import IncomingConnection, LinkContext
from antiphon.transport.link.incoming.link import IncomingLink
from antiphon.transport.payload.registry import Attach, attach_best
from antiphon.transport.settings import LinkIdentity, LinkSettings, LinkState
from antiphon.v1 import chunk_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.wire.checksum import CorruptMessage
from antiphon.wire.frames import CameOnLink
from antiphon.wire.status import abort

MAX_LINKS = 1024
"""The maximum number of links in a process, including suspended links."""

MAX_NAME_BYTES = 256
"""The maximum length in bytes of a name in a hello. Names are stored with the link and appear in
the response to `Describe`.
"""

REPLACED_RETRY_S = 1.0
"""The retry delay in seconds that is given to new sessions after the consumer process has been
replaced.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IncomingEvents:
    """Callbacks for link events, which are called on the event loop.

    `arrived` receives each chunk, in order, with the ID of its link. `failed` receives the link,
    the message and the fault if a chunk is malformed. `opened`, `suspended` and `lost` receive the
    link.
    """

    opened: Callable[[IncomingLink], None]
    arrived: Callable[[Sequence[Chunk], str], None]
    failed: Callable[[IncomingLink, chunk_pb2.Chunk, AntiphonError], None]
    suspended: Callable[[IncomingLink], None]
    lost: Callable[[IncomingLink], None]


class IncomingLinks:
    """Serves all incoming `Link` streams."""

    def __init__(
        self,
        identity: LinkIdentity,
        settings: LinkSettings,
        events: IncomingEvents,
        *,
        attach: Attach = attach_best,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._events = events
        self._attach = attach
        self._links: dict[str, IncomingLink] = {}
        self._connections: dict[str, IncomingConnection] = {}

    async def serve(self, requests: AsyncIterable[CameOnLink], context: LinkContext) -> None:
        """Serve a stream until its producer ends it or it breaks."""
        incoming = aiter(requests)
        first = await anext(incoming, None)
        if isinstance(first, CorruptMessage):
            log.warning("received a corrupt hello message; the producer will retry")
            return
        if not isinstance(first, stage_pb2.LinkRequest) or not first.HasField("hello"):
            await abort(context, InvalidArgument("link: the first message must be `hello`"))
        hello = first.hello
        fault = _fault(hello) or self._mistaken(hello)
        if fault is not None:
            await abort(context, fault)
        try:
            link, resumed = self._link(hello)
        except ResourceExhausted as error:
            await abort(context, error)
        connection = IncomingConnection(
            link,
            incoming,
            context,
            self._settings,
            lambda chunks: self._events.arrived(chunks, link.link_id),
            lambda message, fault: self._events.failed(link, message, fault),
            self._attach,
        )
        if (before := self._connections.get(link.link_id)) is not None:
            before.close()
        self._connections[link.link_id] = connection
        link.state.connected = True
        failure: AntiphonError | None = None
        try:
            await connection.run(hello, self._identity, resumed=resumed)
        except AntiphonError as error:
            failure = error
        except grpc.aio.InternalError:
            log.info("the producer of link %s has disconnected", link.link_id)
        finally:
            if self._connections.get(link.link_id) is connection:
                # If a chunk is missing or out of place, it may still arrive correctly on the next
                # connection.
                final = failure is not None and not isinstance(failure, DataLoss)
                self._disconnected(link, final=connection.said_goodbye or final)
        if failure is not None:
            await abort(context, failure)

    def states(self) -> list[LinkState]:
        """Return the state of all links, except for those that are lost."""
        return [link.state for link in self._links.values()]

    def _mistaken(self, hello: stage_pb2.LinkHello) -> Unavailable | None:
        """Return an error if the link is meant for a previous boot of this process, or None
        otherwise.
        """
        if hello.consumer_boot_id in ("", self._identity.boot_id):
            return None
        return Unavailable(
            f"hello.consumer_boot_id: the link was opened to boot {hello.consumer_boot_id}, "
            f"which has ended; the process at its address is {self._identity.boot_id}; open a "
            "new session",
            field="hello.consumer_boot_id",
            stage=self._identity.role,
            retry_after_s=REPLACED_RETRY_S,
        )

    def _link(self, hello: stage_pb2.LinkHello) -> tuple[IncomingLink, bool]:
        """Return the link that a hello refers to, and whether that link already existed.

        Raises `ResourceExhausted` if there are already `MAX_LINKS` links.
        """
        for other in list(self._links.values()):
            same_place = hello.address and other.producer == (hello.host_id, hello.address)
            if same_place and other.boot_id != hello.boot_id:
                log.warning("%s at %s has restarted", hello.role, hello.address)
                self._lose(other)
        known = self._links.get(hello.link_id)
        if known is not None:
            if known.expiry is not None:
                known.expiry.cancel()
                known.expiry = None
            known.state.counts["reconnected"] += 1
            return known, True
        if len(self._links) >= MAX_LINKS:
            raise ResourceExhausted(
                f"link: {MAX_LINKS} links are open, which is the maximum", retry_after_s=1.0
            )
        state = LinkState(False, hello.role, hello.address, hello.name)
        producer = (hello.host_id, hello.address)
        link = IncomingLink(hello.link_id, producer, hello.boot_id, state)
        self._links[hello.link_id] = link
        self._events.opened(link)
        return link, False

    def _disconnected(self, link: IncomingLink, *, final: bool) -> None:
        self._connections.pop(link.link_id, None)
        link.state.connected = False
        if final or not self._settings.resume_window_s:
            self._lose(link)
            return
        log.warning("the link from %s %s failed", link.state.peer_role, link.state.peer_address)
        loop = asyncio.get_running_loop()
        link.expiry = loop.call_later(self._settings.resume_window_s, self._lose, link)
        self._events.suspended(link)

    def _lose(self, link: IncomingLink) -> None:
        if self._links.get(link.link_id) is not link:
            return
        del self._links[link.link_id]
        if link.expiry is not None:
            link.expiry.cancel()
        if (connection := self._connections.pop(link.link_id, None)) is not None:
            connection.close()
        self._events.lost(link)


def _fault(hello: stage_pb2.LinkHello) -> InvalidArgument | None:
    """Return an error if the hello is invalid, or None otherwise."""
    if not hello.link_id:
        return InvalidArgument("hello.link_id: must not be empty", field="hello.link_id")
    for name in ("link_id", "host_id", "boot_id", "role", "address", "consumer_boot_id", "name"):
        if len(getattr(hello, name).encode()) > MAX_NAME_BYTES:
            field = f"hello.{name}"
            return InvalidArgument(
                f"{field}: must have at most {MAX_NAME_BYTES} bytes", field=field
            )
    return None
