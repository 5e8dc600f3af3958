"""Multiplexes many sessions over a single stream to a replica. Each session is one line of the
stream.

Opening a gRPC stream costs several times as much as sending a message. A session with a small
opening message and a single segment therefore becomes a line of the replica's shared `RunSessions`
stream. A session with a large input gets a stream of its own, because a large message would delay
the other lines. Conversations also get their own streams, because they are opened rarely and may
receive a large input later.

`standing_lines.py` implements the lines and defines what ends them. If the stream's call breaks,
the lines are suspended until the stream continues on a new call. They end if the stage is no longer
listening, doesn't recognize the stream, or can't be reached within `RESUME_WITHIN_S` or its resume
window.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable

import grpc

from antiphon.errors import DataLoss, Internal, Unavailable
from antiphon.transport.confirmation_clock import CONFIRMED_WITHIN_S, ConfirmationClock
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.wire.checksum import undamaged
from antiphon.wire.status import is_typed, said_by
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.sessions.connection_errors import ConnectionCancelled
from antiphon_gateway.sessions.line_connection import LOST_STATUS, SignsOfLife
from antiphon_gateway.sessions.line_requests import LineRequests
from antiphon_gateway.sessions.stage_stream import StageStream
from antiphon_gateway.sessions.standing_lines import StandingLine, StandingLines

log = logging.getLogger(__name__)

Suspended = Callable[[str, str], None]
Rpc = grpc.aio.StreamStreamCall[stage_pb2.LineRequest, stage_pb2.LineResponse]

SMALL_BYTES = 64 << 10
"""The maximum size in bytes of an opening message that is sent on a shared stream."""
GOODBYE_S = 1.0
"""The time in seconds that a stage is given to end its sessions when the gateway disconnects."""
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5
"""The bounds of the pause in seconds between two attempts to continue a stream."""
RESUME_WITHIN_S = 2.0
"""A stage that cannot be reached for this many seconds is lost, although it keeps the sessions for
longer. A broken connection to a living process is replaced within milliseconds, and the answers of
a dead process should continue on another replica soon.
"""
ANSWER_WITHIN_S = 1.0
"""The time in seconds in which the stage has to continue the stream on a new call. After that, the
gateway replaces the connection.
"""
MOST_FRUITLESS = 8
"""The maximum number of consecutive calls that may break without any message being received or
confirmed. After that, the stream is given up.
"""
# gRPC has no separate status for a refused connection, so it is recognized by its message. It means
# that no process is listening, so the stage's sessions no longer exist.
_REFUSED = "Connection refused"


class StandingStreams:
    """The shared streams of the gateway, one per replica. Call `close` when they're no longer
    needed.

    After each suspension of a stream, `suspended` is called with the role and the outcome
    (`resumed` or `lost`).
    """

    def __init__(self, suspended: Suspended = lambda role, outcome: None) -> None:
        self._suspended = suspended
        self._by_replica: dict[Replica, StandingStream] = {}
        self._open: set[StandingStream] = set()

    def open_line(self, replica: Replica, opening: session_pb2.SessionOpen) -> StageStream:
        """Open a session on a replica."""
        if replica.description is None or not replica.description.runs_lines:
            return StageStream(replica, opening)
        segment = opening.first_segment
        if not segment.last or segment.live or opening.ByteSize() > SMALL_BYTES:
            return StageStream(replica, opening, self._connect_alone)
        return StageStream(replica, opening, self._connect)

    async def close(self) -> None:
        """Close all streams."""
        await asyncio.gather(*(each.close() for each in tuple(self._open)))

    def _connect(self, replica: Replica, requests: LineRequests) -> LineReader:
        stream = self._by_replica.get(replica)
        if stream is None or not stream.takes_lines():
            stream = self._begin(replica)
            self._by_replica[replica] = stream
        return stream.connect(requests)

    def _connect_alone(self, replica: Replica, requests: LineRequests) -> LineReader:
        return self._begin(replica, for_one=True).connect(requests)

    def _begin(self, replica: Replica, *, for_one: bool = False) -> StandingStream:
        stream = StandingStream(replica, self._suspended, for_one=for_one)
        self._open.add(stream)
        stream.reading.add_done_callback(lambda _: self._forget(replica, stream))
        return stream

    def _forget(self, replica: Replica, stream: StandingStream) -> None:
        self._open.discard(stream)
        if self._by_replica.get(replica) is stream:
            del self._by_replica[replica]


class _Call:
    """A single `RunSessions` call of a stream. It remembers the channel on which it was started,
    because the replica may switch to a new channel.
    """

    def __init__(
        self, replica: Replica, sent: Callable[[_Call], AsyncIterator[stage_pb2.LineRequest]]
    ) -> None:
        self.is_over = self.is_stalled = False
        self.channel = replica.channel
        self.rpc: Rpc = replica.stub.RunSessions(sent(self))


class StandingStream:
    """A `RunSessions` stream, which is open from construction until it is lost or closed. If
    `for_one` is true, the stream has only one line and closes when that line ends.
    """

    def __init__(self, replica: Replica, suspended: Suspended, *, for_one: bool = False) -> None:
        self.is_over = False
        self._replica = replica
        self._suspended = suspended
        self._id = uuid.uuid4().hex
        self._changed = asyncio.Event()
        self._lines = StandingLines(self._changed.set, for_one=for_one)
        self._clock = ConfirmationClock(self._lines.stream, self, asking=self)
        self._is_closing = False
        self._fruitless = self._progress = 0
        self._call = _Call(replica, self._sent)
        self.reading = asyncio.create_task(self._run())
        replica.on_replaced.add(self._move)

    def takes_lines(self) -> bool:
        """Return whether new lines can be opened. This is false if the replica uses another
        channel, and the stream cannot move there.
        """
        return not self.is_over and (self._may_continue or not self._has_moved)

    def connect(self, requests: LineRequests) -> LineReader:
        """Open a line."""
        arrived = asyncio.Event()
        return LineReader(self._lines.connect(requests, arrived.set), arrived)

    async def close(self) -> None:
        """Close the stream and end all of its lines."""
        if self._may_continue and not self._lines.is_suspended:
            self._lines.leave()
            await asyncio.wait((self.reading,), timeout=GOODBYE_S)
        self._is_closing = True
        self._call.rpc.cancel()
        await asyncio.wait((self.reading,))

    @property
    def waits(self) -> bool:
        """Whether any line is open, in which case messages are expected."""
        return self._lines.open > 0

    def confirm(self) -> None:
        """Confirm the messages that have been received."""
        self._changed.set()

    def ask(self) -> None:
        """Send a message that the stage has to confirm."""
        self._lines.ask()

    def give_call_up(self) -> None:
        """Move the stream to a new call, because the stage hasn't confirmed what was sent on this
        one.
        """
        role = self._replica.role
        log.warning("the stage %s has confirmed nothing for %g s", role, CONFIRMED_WITHIN_S)
        self._call.is_stalled = True
        self._call.rpc.cancel()

    def _move(self) -> None:
        """Continue on the replica's new channel. A stream that cannot do so keeps its call until
        the old channel is closed.
        """
        if self._may_continue:
            self._call.rpc.cancel()

    @property
    def _may_continue(self) -> bool:
        return self._lines.resume_window_s > 0

    async def _run(self) -> None:
        failure: Exception = ConnectionCancelled()
        try:
            failure = await self._read(self._call)
            while self._is_broken(failure) and self._is_worthwhile(failure):
                if (ended_by := await self._continue(failure)) is None:
                    if isinstance(failure, ConnectionCancelled) and not self._is_closing:
                        failure = Unavailable("it did not continue its sessions on another call")
                    break
                failure = ended_by
        except Exception as error:
            role = self._replica.role
            log.exception("reading the sessions of the stage %s failed", role)
            what = f"reading its sessions failed: {type(error).__name__}: {error}"
            failure = Internal(f"the stage {role}: {what}", stage=role)
        finally:
            self.is_over = True
            self._replica.on_replaced.discard(self._move)
            self._lines.end(failure)
            self._end(self._call)

    async def _read(self, call: _Call, limit: asyncio.Timeout | None = None) -> Exception:
        """Read from a call until it ends and return the reason. `limit` is the time limit for
        resuming the stream, which is removed once the stage has done so.
        """
        signs = SignsOfLife(self._replica)
        try:
            async for response in undamaged(call.rpc):
                signs.came()
                self._lines.receive(response)
                self._run_clock()
                if limit is not None and response.resumed:
                    limit.reschedule(None)
                    self._suspended(self._replica.role, "resumed")
                signs.asked()
        except asyncio.CancelledError:
            # gRPC raises CancelledError both when the call is cancelled and when this task is
            # cancelled. Only the latter is passed on.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return ConnectionCancelled()
        except (Unavailable, grpc.aio.AioRpcError) as broken:
            return broken
        except DataLoss as wrong:
            return _Inconsistent(wrong.message)
        return _Ended("it closed the stream of its sessions")

    def _is_broken(self, failure: Exception) -> bool:
        """Return whether the stream may be resumed after its call has ended with this failure."""
        if self._is_closing or not (self._may_continue and self._lines.open):
            return False
        match failure:
            case ConnectionCancelled():
                return self._call.is_stalled or self._has_moved
            case grpc.aio.AioRpcError():
                return failure.code() in LOST_STATUS
        return not isinstance(failure, _Inconsistent | _Ended)

    @property
    def _has_moved(self) -> bool:
        """Whether the replica uses another channel than the current call."""
        return self._call.channel is not self._replica.channel

    def _is_worthwhile(self, failure: Exception) -> bool:
        """Return whether it is worth continuing. This is false if the last `MOST_FRUITLESS` calls
        broke without progress. A call that the gateway has cancelled in order to use another
        channel doesn't count, because it didn't break.
        """
        if isinstance(failure, ConnectionCancelled) and not self._call.is_stalled:
            return True
        progress = self._lines.progress
        self._fruitless = 0 if progress != self._progress else self._fruitless + 1
        self._progress = progress
        return self._fruitless < MOST_FRUITLESS

    async def _continue(self, broken: Exception) -> Exception | None:
        """Resume the stream on a new call and return the failure that ends the new call. Returns
        None if the stage doesn't resume the stream.
        """
        role, window_s = self._replica.role, self._lines.resume_window_s
        said = said_by(broken) if isinstance(broken, grpc.aio.AioRpcError) else str(broken)
        log.warning("%d sessions of the stage %s are suspended: %s", self._lines.open, role, said)
        self._lines.suspend()
        self._clock.stop()
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + min(window_s, RESUME_WITHIN_S)
        pause_s = FIRST_PAUSE_S
        while not self._is_closing and (now := loop.time()) < give_up_at:
            self._end(self._call)
            answer_at = now + ANSWER_WITHIN_S
            try:
                async with asyncio.timeout_at(min(answer_at, give_up_at)) as limit:
                    self._call = _Call(self._replica, self._sent)
                    failure = await self._read(self._call, limit)
            except TimeoutError:
                # If the stage had enough time, the connection may have lost everything that was
                # sent on it, and not only the call.
                if answer_at <= give_up_at and not self._has_moved:
                    self._replica.open_anew()
                continue
            except grpc.aio.UsageError:
                break
            if not self._lines.is_suspended:
                return failure
            if isinstance(failure, grpc.aio.AioRpcError):
                self._replica.misread(self._call.channel, failure)
            if _is_final(failure) or not self._is_broken(failure):
                break
            await asyncio.sleep(min(pause_s, max(give_up_at - loop.time(), 0.0)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        log.warning("ending the suspended sessions of the stage %s", role)
        self._suspended(role, "lost")
        return None

    def _run_clock(self) -> None:
        """Start the clock that expects confirmations, unless the stage has announced that it sends
        none.
        """
        if self._may_continue or not self._lines.window_bytes:
            self._clock.start()
        else:
            self._clock.stop()

    def _end(self, call: _Call) -> None:
        self._clock.stop()
        call.is_over = True
        # Wake the request iterator so that it ends. gRPC leaves it waiting when an RPC is over.
        self._changed.set()
        call.rpc.cancel()

    async def _sent(self, call: _Call) -> AsyncIterator[stage_pb2.LineRequest]:
        yield self._lines.hello(self._id)
        while not call.is_over:
            await self._changed.wait()
            if call.is_over:
                return
            self._changed.clear()
            while not call.is_over and (request := self._lines.take()) is not None:
                yield request
                if call.is_over:
                    return
                self._run_clock()
            if self._lines.has_left:
                return


class _Ended(Unavailable):
    """The stage ended the stream."""


class _Inconsistent(Unavailable):
    """The gateway and the stage disagree about which messages were sent."""


def _is_final(failure: Exception) -> bool:
    """Return whether further attempts to continue the stream are bound to fail."""
    if not isinstance(failure, grpc.aio.AioRpcError):
        return False
    if failure.code() is grpc.StatusCode.UNAVAILABLE and is_typed(failure):
        # The call was damaged on its way to the stage, or the stage has given it up.
        return False
    return is_typed(failure) or _REFUSED in (failure.details() or "")


class LineReader:
    """Implements `Connection` on a line of a shared stream."""

    def __init__(self, line: StandingLine, arrived: asyncio.Event) -> None:
        self._line = line
        self._arrived = arrived

    def changed(self) -> None:
        """Send the new requests."""
        self._line.changed()

    def cancel(self) -> None:
        """End the line and discard the responses that have not been read."""
        self._line.cancel()

    async def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """Yield the stage's responses on this line."""
        line = self._line
        while True:
            while (read := line.read()) is not None:
                response, size_bytes = read
                yield response
                line.processed(size_bytes)
            if line.is_over:
                if line.failure is not None:
                    raise line.failure
                return
            self._arrived.clear()
            await self._arrived.wait()
