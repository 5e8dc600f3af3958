"""A session's line to one of its stages. It works with any type of connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

import grpc

from antiphon.errors import AntiphonError, Unavailable
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.wire.status import error_from_rpc, is_typed
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.sessions.connection_errors import ConnectionCancelled
from antiphon_gateway.sessions.line_connection import LOST_STATUS, Connect, OwnStream
from antiphon_gateway.sessions.line_requests import LineRequests


class StageStream:
    """A session on one replica. It is open from construction until `half_close` or `cancel` is
    called. By default, its connection is a separate RunSession stream.

    While a segment is open, it occupies one of the replica's slots, until the replica reports or
    refuses the segment.
    """

    def __init__(
        self, stage: Replica, opening: session_pb2.SessionOpen, connect: Connect = OwnStream
    ) -> None:
        self.role = stage.role
        self.address = stage.address
        self._requests = LineRequests(stage.role, opening)
        self._stage = stage
        self._has_slot = self._has_reported = False
        self.gone = False
        """Whether the replica was lost after sending its report on the segment."""
        self._take_slot()
        self._loss: Unavailable | None = None
        self._channel = stage.channel
        self._connection = connect(stage, self._requests)
        stage.hold(self._stage_lost)

    def open_segment(
        self, opening: session_pb2.SegmentOpen, chunks: Iterable[chunk_pb2.Chunk]
    ) -> None:
        """Open another segment. All stages must have completed the previous one."""
        self._has_reported = False
        self._take_slot()
        self._requests.begin_segment(opening, chunks)
        self._connection.changed()

    def send(self, request: session_pb2.SessionRequest) -> None:
        """Send a message for the current segment.

        Credit for an edge replaces any credit that hasn't been sent yet. The same applies to
        progress. A `gone` message isn't sent to a stage that has already reported. Raises
        `ResourceExhausted` if too many bytes of chunks are waiting to be sent.
        """
        if request.HasField("gone") and self._has_reported:
            return
        self._requests.add(request)
        self._connection.changed()

    def half_close(self) -> None:
        """Stop sending, which makes the stage end the stream. This can be called more than once."""
        self._requests.done = True
        self._connection.changed()

    def cancel(self) -> None:
        """End the stream right away, so that the stage frees all resources. This can be called more
        than once.
        """
        self._stage.let_go(self._stage_lost)
        self._give_slot_back()
        self._connection.cancel()

    def _take_slot(self) -> None:
        if not self._has_slot:
            self._has_slot = True
            self._stage.segment_began()

    def _give_slot_back(self) -> None:
        """Release the slot, because the replica has completed or refused the segment. This can be
        called more than once.
        """
        if self._has_slot:
            self._has_slot = False
            self._stage.segment_ended()

    async def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """Yield the stage's messages until the stream ends or the replica is `gone`.

        If the stream breaks, its typed error is raised. If the replica is lost, `Unavailable` is
        raised.
        """
        try:
            async for response in self._connection.responses():
                self._note(response)
                yield response
        except Unavailable as damage:
            raise self._lost(damage.message) from damage
        except grpc.aio.AioRpcError as failure:
            error = self._error(failure)
            if not (self._has_reported and isinstance(error, Unavailable)):
                raise error from failure
            self.gone = True
        except ConnectionCancelled:
            if not self._has_reported:
                raise self._loss or self._lost("its channel was closed") from None
            self.gone = True

    def _note(self, response: session_pb2.SessionResponse) -> None:
        """If the message is a report or a refusal, release the slot. If the replica is lost after
        its report, this isn't an error, because downstream stages report it if the output is
        incomplete.
        """
        match response.WhichOneof("message"):
            case "report":
                self._has_reported = True
                self._give_slot_back()
            case "segment_refused":
                self._give_slot_back()

    def _stage_lost(self, loss: Unavailable) -> None:
        """Treat the stream as broken, because the stage isn't responding any more. gRPC may not
        have noticed this yet.
        """
        self._loss = loss
        self.cancel()

    def _error(self, failure: grpc.aio.AioRpcError) -> AntiphonError:
        if failure.code() in LOST_STATUS and not is_typed(failure):
            self._stage.misread(self._channel, failure)
            return self._lost(failure.details() or "the connection was lost")
        return error_from_rpc(failure, stage=self.role)

    def _lost(self, why: str) -> Unavailable:
        return Unavailable(
            f"the stage {self.role} at {self.address} was lost: {why}", stage=self.role
        )


OpenLine = Callable[[Replica, session_pb2.SessionOpen], StageStream]
"""A function that opens a session on a replica."""
