"""The producer's end of a link, which is a resumable stream to a downstream stage process.

Chunks that are ready at the same time are sent in a single message, even if they belong to
different sessions, because the CPU time that gRPC needs for a message hardly depends on its size.
Chunks are numbered, and are kept until the consumer has acknowledged them. This way, a link can
resume after its stream has broken without losing or repeating anything. In the meantime, its
sessions are suspended. If the link isn't resumed within the resume window, the link and everything
on it are lost. This also happens if the consumer doesn't recognize the link, which means that the
consumer has been restarted. The next chunk then opens a new link.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass

import grpc

from antiphon.errors import AntiphonError, DataLoss, Internal, Unavailable
from antiphon.transport.abandoned_calls import free_soon
from antiphon.transport.link.outgoing.connection import OutgoingConnection
from antiphon.transport.link.outgoing.send_log import Outgoing, SendLog
from antiphon.transport.payload.registry import MakeSenders, make_senders
from antiphon.transport.settings import LinkIdentity, LinkSettings, LinkState, Peer
from antiphon.v1 import stage_pb2
from antiphon.values.chunk import MAX_NAME, Chunk
from antiphon.values.segment import SegmentKey
from antiphon.wire.blob import Encoding
from antiphon.wire.checksum import CorruptMessage
from antiphon.wire.chunks import address_to_proto
from antiphon.wire.convert import error_from_proto
from antiphon.wire.frames import LinkCall, link_call
from antiphon.wire.status import error_from_rpc, is_typed

FIRST_RETRY_S = 0.05
LAST_RETRY_S = 0.25
# The timeout for the handshake with a peer that accepts the connection but doesn't answer.
FIRST_HANDSHAKE_S = 10.0
HANDSHAKE_S = 1.5
GOODBYE_S = 1.0
MOST_GARBLED = 8
"""The maximum number of consecutive connections that may end because of corrupt data without any
chunk being confirmed.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """Callbacks for link events, which are called on the event loop.

    `credited` receives the peer, the segment, the edge, and the total number of positions that may
    be sent. `suspended` receives the peer. `lost` receives the peer and the sessions that have
    unacknowledged chunks. `settled` receives a session when all of its chunks have been
    acknowledged.
    """

    refused: Callable[[str, AntiphonError], None]
    lost: Callable[[Peer, AntiphonError, Collection[str]], None]
    settled: Callable[[str], None]
    credited: Callable[[Peer, SegmentKey, str, int], None]
    suspended: Callable[[Peer], None]


class OutgoingLink:
    """A link to `peer`. Call `send_nowait` until the link is lost, and `close` when you are done
    with it.

    After construction, no errors are raised. Failures are reported through `LinkEvents` instead.
    """

    def __init__(
        self,
        peer: Peer,
        identity: LinkIdentity,
        settings: LinkSettings,
        events: LinkEvents,
        *,
        open_channel: Callable[[], grpc.aio.Channel],
        make_senders: MakeSenders = make_senders,
    ) -> None:
        self.state = LinkState(outgoing=True, peer_address=peer.address)
        self._peer = peer
        self._address = peer.address
        self._link_id = uuid.uuid4().hex
        self._identity = identity
        self._settings = settings
        self._events = events
        self._open_channel = open_channel
        self._make_senders = make_senders
        self._log = SendLog(settings.session_bytes, settings.link_bytes)
        self._changed = asyncio.Event()
        self._responses = self._garbled = 0
        self._peer_boot = ""
        self._give_up_at: float | None = None
        self._connection: OutgoingConnection | None = None
        self._accepted = self._closing = False
        self._task = asyncio.create_task(self._run(), name=f"link to {peer.address}")

    @property
    def sessions(self) -> Collection[str]:
        """The sessions that have unacknowledged chunks."""
        return self._log.sessions

    def send_nowait(self, chunk: Chunk) -> None:
        """Queue a chunk to be sent.

        Raises `ResourceExhausted` if too much is queued, and `ValueError` if a tensor can't be
        represented in a blob.
        """
        encoding = Encoding(chunk.tensors) if chunk.tensors else None
        self._log.append(Outgoing(address_to_proto(chunk), encoding))
        self._changed.set()

    async def close(self, *, flush: bool = True) -> None:
        """Send all queued chunks within `GOODBYE_S` seconds, and then end the link cleanly.

        If `flush` is false, or if this call is cancelled, queued chunks are dropped. No callbacks
        are called.
        """
        self._closing = True
        if flush and self._connection is not None:
            self._connection.leave()
            await asyncio.wait([self._task], timeout=GOODBYE_S)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Keep connecting and sending until the link is lost."""
        retry_s = FIRST_RETRY_S
        while True:
            cause = await self._connect()
            is_over = self._closing or not self._may_heal(cause)
            del cause  # Its traceback refers to the call.
            if not self._closing:
                free_soon()
            if is_over:
                return
            if self._accepted:
                retry_s = FIRST_RETRY_S
            await asyncio.sleep(min(retry_s, max(0.0, self._time_left())))
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _connect(self) -> Exception:
        """Run a single connection until it ends, and return the exception that ended it."""
        self._accepted = False
        try:
            async with self._open_channel() as channel:
                stream = link_call(channel, self.state.count_message)
                connection = OutgoingConnection(
                    stream, self._log, self._changed, self._settings, self.state, self._make_senders
                )
                try:
                    async with asyncio.timeout(self._handshake_s()):
                        self._check(await connection.open(self._hello()))
                    self._connected(connection)
                    async with asyncio.TaskGroup() as pumps:
                        pumps.create_task(connection.write(lambda: self._responses))
                        pumps.create_task(self._read(stream, connection))
                finally:
                    self._connection, self.state.connected = None, False
                    connection.close()
        except ExceptionGroup as group:
            return _first(group)
        except Exception as error:
            # `_own_word` classifies the exception. Whatever it is, it must be reported rather than
            # silently ending the link.
            return error
        return asyncio.InvalidStateError("the peer closed the link")

    def _check(self, accept: stage_pb2.LinkAccept) -> None:
        """Resume from the number of chunks that the consumer has received. Raises `Unavailable` if
        the consumer is a different process.
        """
        if self._peer_boot and (accept.boot_id != self._peer_boot or not accept.resumed):
            raise Unavailable(f"the process at {self._address} no longer has the link")
        self._peer_boot = accept.boot_id
        self.state.peer_role = accept.role[:MAX_NAME]
        self.state.peer_name = accept.name[:MAX_NAME]
        self._confirm(self._log.acknowledge(accept.chunks))
        self.state.counts["resent"] += self._log.rewind(accept.chunks)

    def _connected(self, connection: OutgoingConnection) -> None:
        if self._give_up_at is not None:
            self.state.counts["reconnected"] += 1
            log.info("the link to %s has reconnected", self._address)
        self._give_up_at = None
        self._accepted = True
        self._connection, self.state.connected = connection, True

    async def _read(self, stream: LinkCall, connection: OutgoingConnection) -> None:
        while isinstance(response := await stream.read(), stage_pb2.LinkResponse):
            match response.WhichOneof("message"):
                case "progress":
                    self._confirm(connection.progressed(response.progress))
                case "resend":
                    connection.asked_again(response.resend)
                case "accept":
                    connection.accepted(response.accept)
                case "refusal":
                    self._responses += 1
                    refusal = response.refusal
                    self._events.refused(refusal.session_id, error_from_proto(refusal.error))
                case "credit":
                    self._responses += 1
                    credit = response.credit
                    key = SegmentKey(credit.session_id, credit.segment)
                    self._events.credited(self._peer, key, credit.edge, credit.positions)
            connection.heard()
        if isinstance(response, CorruptMessage):
            self.state.counts["damaged"] += 1
            raise asyncio.InvalidStateError("received a corrupt response")
        raise asyncio.InvalidStateError("the peer closed the link")

    def _confirm(self, acknowledged: Collection[Outgoing]) -> None:
        """Report every session whose chunks have all been acknowledged."""
        if acknowledged:
            self._garbled = 0
        for session_id in {chunk.session_id for chunk in acknowledged}:
            if session_id not in self._log.sessions:
                self._events.settled(session_id)

    def _may_heal(self, cause: Exception) -> bool:
        """Return whether to reconnect now that a connection has ended. If the result is false, the
        link is lost.
        """
        # The peer would repeat a typed error. Data that was corrupted in transit, on the other
        # hand, may arrive intact next time.
        word = _own_word(cause)
        garbled = isinstance(word, DataLoss) and self._garbled < MOST_GARBLED
        if word is not None and not garbled:
            self._lose(word)
            return False
        self._garbled += garbled
        now = asyncio.get_running_loop().time()
        if self._give_up_at is None:
            self._give_up_at = now + self._settings.resume_window_s
            if self._settings.resume_window_s:
                log.warning("the link to %s failed: %s", self._address, _said(cause))
                self._events.suspended(self._peer)
        if now < self._give_up_at:
            return True
        self._lose(Unavailable(_said(cause)))
        return False

    def _lose(self, cause: AntiphonError) -> None:
        role = self._identity.role
        cause = type(cause)(
            f"{role}: the link to {self._address} was lost: {cause.message}",
            stage=cause.stage,
            retry_after_s=cause.retry_after_s,
        )
        log.warning("%s", cause.message)
        self._events.lost(self._peer, cause, tuple(self._log.sessions))

    def _handshake_s(self) -> float:
        """Return the timeout for one attempt. It is short enough that another attempt can
        follow.
        """
        if self._give_up_at is None:
            return FIRST_HANDSHAKE_S
        return max(FIRST_RETRY_S, min(HANDSHAKE_S, self._time_left()))

    def _time_left(self) -> float:
        now = asyncio.get_running_loop().time()
        return 0.0 if self._give_up_at is None else self._give_up_at - now

    def _hello(self) -> stage_pb2.LinkHello:
        return stage_pb2.LinkHello(
            link_id=self._link_id,
            host_id=self._identity.host_id,
            boot_id=self._identity.boot_id,
            role=self._identity.role,
            address=self._identity.address,
            responses=self._responses,
            consumer_boot_id=self._peer.boot_id,
            name=self._identity.name,
        )


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first exception in an exception group that isn't a group itself."""
    found = group.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found


def _own_word(cause: Exception) -> AntiphonError | None:
    """Return the typed error with which either end closed the connection, or None if
    there is none.
    """
    if isinstance(cause, AntiphonError):
        return cause
    if isinstance(cause, grpc.aio.AioRpcError):
        return error_from_rpc(cause) if is_typed(cause) else None
    if isinstance(cause, (asyncio.InvalidStateError, TimeoutError, grpc.RpcError)):
        return None
    log.error("the link failed", exc_info=cause)
    return Internal(f"{type(cause).__name__}: {cause}")


def _said(cause: Exception) -> str:
    """Return the error message of a broken stream."""
    if isinstance(cause, grpc.aio.AioRpcError):
        return cause.details() or cause.code().name
    return str(cause) or type(cause).__name__
