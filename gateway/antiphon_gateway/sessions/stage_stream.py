"""One RunSession stream to a stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable

import grpc

from antiphon.errors import AntiphonError, ResourceExhausted, Unavailable
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.wire.checksum import undamaged
from antiphon.wire.status import error_from_rpc, is_typed
from antiphon_gateway.fleet.replica import Replica

Rpc = grpc.aio.StreamStreamCall[session_pb2.SessionRequest, session_pb2.SessionResponse]

# What gRPC says by itself of a connection that broke, or on which came what nobody has sent: what
# a stage says has its typed form with it.
_LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

MAX_WAITING_BYTES = 8 << 20
"""Of a live segment's samples, two minutes, that wait to be sent to a stage that takes none."""
FRESH_S = 0.1
"""A message counts as a sign of life if its reader has waited for it for so long, or has been away
for less: what waits in a buffer may have been sent long ago."""


class StageStream:
    """A `StageLine` that is a RunSession stream of its own."""

    def __init__(self, stage: Replica, opening: session_pb2.SessionOpen) -> None:
        self.role = stage.role
        self.address = stage.address
        # At most one segment's beginning and its end, and what comes between them of a live one's
        # input: the next is opened when that is over.
        self._waiting_bytes = 0
        self._pending: list[session_pb2.SessionRequest] = [session_pb2.SessionRequest(open=opening)]
        self._credits: dict[str, session_pb2.SessionRequest] = {}
        self._progress: session_pb2.SessionRequest | None = None
        self._half_closed = False
        self._changed = asyncio.Event()
        self._changed.set()
        self._stage = stage
        self._has_slot = self._has_reported = self.gone = False
        self._take_slot()
        self._loss: Unavailable | None = None
        self._channel = stage.channel
        self._rpc: Rpc = stage.stub.RunSession(self._requests())
        stage.hold(self._stage_lost)

    def open_segment(
        self, opening: session_pb2.SegmentOpen, chunks: Iterable[chunk_pb2.Chunk]
    ) -> None:
        """Open another segment, once all stages are done with the one before it."""
        self._credits.clear()
        self._has_reported = False
        self._take_slot()
        self._pending.append(session_pb2.SessionRequest(segment_open=opening))
        self._pending += [session_pb2.SessionRequest(chunk=chunk) for chunk in chunks]
        self._changed.set()

    def send(self, request: session_pb2.SessionRequest) -> None:
        """Send a message about the open segment; see `StageLine.send`."""
        match request.WhichOneof("message"):
            case "credit":
                self._credits[request.credit.edge] = request
            case "progress":
                self._progress = request
            case "gone" if self._has_reported:
                return
            case message:
                if message == "chunk":
                    self._hold(request.chunk.payload.size_bytes)
                self._pending.append(request)
        self._changed.set()

    def half_close(self) -> None:
        """End what is sent; the stage then ends the stream. May be repeated."""
        self._half_closed = True
        self._changed.set()

    def cancel(self) -> None:
        """End the stream at once; the stage frees everything. May be repeated."""
        self._stage.let_go(self._stage_lost)
        self._give_slot_back()
        self._rpc.cancel()
        self.half_close()  # an RPC that is over already leaves its request iterator waiting

    def _take_slot(self) -> None:
        if not self._has_slot:
            self._has_slot = True
            self._stage.segment_began()

    def _give_slot_back(self) -> None:
        """The replica has done its part of the segment, or refused it. May be repeated."""
        if self._has_slot:
            self._has_slot = False
            self._stage.segment_ended()

    def _hold(self, size_bytes: int) -> None:
        """Count a chunk that waits to be sent."""
        self._waiting_bytes += size_bytes
        if self._waiting_bytes > MAX_WAITING_BYTES:
            raise ResourceExhausted(
                f"the stage {self.role} does not take the input that comes while it is recorded; "
                f"{MAX_WAITING_BYTES} bytes of it wait",
                stage=self.role,
            )

    async def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """What the stage sends; see `StageLine.responses`."""
        try:
            asked_at, away_s = time.monotonic(), 0.0
            async for response in undamaged(self._rpc):
                came_at = time.monotonic()
                if away_s < FRESH_S or came_at - asked_at > FRESH_S:
                    self._stage.outputs += 1
                self._note(response)
                yield response
                asked_at = time.monotonic()
                away_s = asked_at - came_at
        except Unavailable as damage:
            raise self._lost(damage.message) from damage
        except grpc.aio.AioRpcError as failure:
            error = self._error(failure)
            if not (self._has_reported and isinstance(error, Unavailable)):
                raise error from failure
            self.gone = True
        except asyncio.CancelledError:
            # gRPC raises it for a call that was cancelled here, and so is this task at its end.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            if not self._has_reported:
                raise self._loss or self._lost("its channel was closed") from None
            self.gone = True

    def _note(self, response: session_pb2.SessionResponse) -> None:
        """Give the slot back with a report or a refusal. A replica that is lost after its report
        has not failed: the stages downstream report an error if they miss something of it."""
        match response.WhichOneof("message"):
            case "report":
                self._has_reported = True
                self._give_slot_back()
            case "segment_refused":
                self._give_slot_back()

    async def _requests(self) -> AsyncIterator[session_pb2.SessionRequest]:
        while not self._half_closed:
            await self._changed.wait()
            self._changed.clear()
            while self._pending:
                request = self._pending.pop(0)
                if request.HasField("chunk"):
                    self._waiting_bytes -= min(
                        self._waiting_bytes, request.chunk.payload.size_bytes
                    )
                yield request
            while self._credits:
                _, credit = self._credits.popitem()
                yield credit
            progress, self._progress = self._progress, None
            if progress is not None:
                yield progress

    def _stage_lost(self, loss: Unavailable) -> None:
        """The stage has stopped answering: the stream is broken, whatever gRPC knows."""
        self._loss = loss
        self.cancel()

    def _error(self, failure: grpc.aio.AioRpcError) -> AntiphonError:
        if failure.code() in _LOST and not is_typed(failure):
            self._stage.misread(self._channel, failure)
            return self._lost(failure.details() or "the connection broke")
        return error_from_rpc(failure, stage=self.role)

    def _lost(self, why: str) -> Unavailable:
        return Unavailable(
            f"the stage {self.role} at {self.address} was lost: {why}", stage=self.role
        )
