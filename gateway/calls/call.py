"""A call: one request across its stages, and the only owner of that request's life.

A call opens a session on all its stages at once and merges what they answer
through one bounded mailbox, so that a slow client slows the reading down. The
first error ends it: all streams are cancelled at once and the error overtakes what
the client has not taken yet. An error that may only be the echo of another
stage's death waits a moment for the cause.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from types import TracebackType

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DeadlineExceeded,
    ErrorCode,
    Unavailable,
)
from antiphon.segment import Delivery
from antiphon.v1 import session_pb2
from antiphon.wire.chunks import chunk_from_proto
from antiphon.wire.convert import error_from_proto
from gateway.calls.events import AudioDelta, Event, Finished, Started
from gateway.calls.mailbox import Mailbox
from gateway.calls.opening import opening_messages
from gateway.calls.progress import Progress
from gateway.calls.request import AUDIO, SpeechRequest, name_field
from gateway.calls.stage_stream import StageStream
from gateway.fleet.lineup import Lineup
from gateway.fleet.stages import Stages

log = logging.getLogger("gateway.call")

MAILBOX_MESSAGES = 16
"""Stage messages that wait for a slow client; further ones stay with the stages."""
ROOT_CAUSE_WAIT_S = 0.5
CLOSE_WAIT_S = 1.0

_ECHO_CODES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS, ErrorCode.CANCELLED})

_Message = tuple[str, session_pb2.SessionResponse | None]


class Call:
    """One request across its stages. Enter it, iterate its events, leave it.

    Leaving frees every stage: in order after `Finished`, by cancelling otherwise.
    """

    def __init__(
        self,
        request: SpeechRequest,
        lineup: Lineup,
        stages: Stages,
        config: GatewayConfig,
        deployed_delivery: Mapping[str, Delivery],
    ) -> None:
        self.session_id = str(uuid.uuid4())
        self._model = stages.model_name()
        self._lineup = lineup
        self._stages = stages
        self._idle_timeout_s = config.idle_timeout_s
        timeout_s = min(config.request_timeout_s, request.timeout_s)
        self._deadline = time.monotonic() + timeout_s
        self._field_by_input = request.field_by_input
        self._progress = Progress(self.session_id, lineup)
        self._windows = lineup.windows(
            ahead_s=config.max_ahead_seconds, stage_ahead_s=config.max_stage_ahead_seconds
        )
        self._openings = opening_messages(
            self.session_id, request, lineup, timeout_s, deployed_delivery, self._windows
        )
        self._mailbox: Mailbox[_Message] = Mailbox(MAILBOX_MESSAGES)
        self._streams: list[StageStream] = []
        self._readers: list[asyncio.Task[None]] = []
        self._unopened = set(lineup.roles)
        self._all_opened = asyncio.Event()
        self._echo: AntiphonError | None = None
        self._echo_timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Timeout | None = None
        self._until_deadline = False
        self._waiting: Event | None = None
        self._given: Event | None = None
        self._started = self._finished = False

    async def __aenter__(self) -> Call:
        self._streams = [
            StageStream(self._stages[role], opening) for role, opening in self._openings.items()
        ]
        self._openings = {}
        self._readers = [asyncio.create_task(self._read(stream)) for stream in self._streams]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._echo_timer is not None:
            self._echo_timer.cancel()
        if self._finished and kind is None:
            await asyncio.wait(self._readers, timeout=CLOSE_WAIT_S)
        for stream in self._streams:
            stream.cancel()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Event:
        """The next event, `Started` first and `Finished` last. Raises `AntiphonError`.

        Cancelling loses nothing: the call can be iterated further or left.
        """
        if self._finished:
            raise StopAsyncIteration
        self._credit_taken()
        event = self._waiting or await self._next_event()
        self._waiting = None
        if not self._started:
            self._started, self._waiting = True, event
            return Started(self.session_id, self._model, self._lineup.sample_rate_hz)
        self._finished = isinstance(event, Finished)
        self._given = event
        return event

    def end_with(self, error: AntiphonError) -> None:
        """End the call now with an error; the first one counts."""
        self._mailbox.fail(error)
        for stream in self._streams:
            stream.cancel()

    def _credit_taken(self) -> None:
        """Grant as much audio anew as the client has taken."""
        taken, self._given = self._given, None
        window = self._windows.get(AUDIO, 0)
        if not window or not isinstance(taken, AudioDelta):
            return
        maker = self._lineup.producer(AUDIO).role
        for stream in self._streams:
            if stream.role == maker:
                stream.credit(AUDIO, taken.first_sample + len(taken.samples) + window)

    async def _next_event(self) -> Event:
        """The next delta, or `Finished` when everything has come."""
        while not self._progress.complete:
            role, response = await self._next_message()
            event = self._apply(role, response)
            if event is not None:
                return event
        for stream in self._streams:
            stream.half_close()
        return self._progress.finished()

    async def _next_message(self) -> _Message:
        """The next message of any stage. Raises `DeadlineExceeded` when none comes in time."""
        try:
            async with asyncio.timeout(self._wait_s()) as self._idle:
                return await self._mailbox.get()
        except TimeoutError:
            late = ", ".join(self._progress.unfinished)
            idle = f"no stage has said anything for {self._idle_timeout_s:g} s"
            what = "the request's time is over" if self._until_deadline else idle
            error = DeadlineExceeded(
                f"{what}; not finished: {late}", stage=self._progress.unfinished[0]
            )
            self.end_with(error)
            raise error from None
        finally:
            self._idle = None

    def _wait_s(self) -> float:
        """How long the next sign of life may take: until the stages' time is over, or all time."""
        left_s = self._deadline - time.monotonic()
        self._until_deadline = left_s <= self._idle_timeout_s
        return min(self._idle_timeout_s, left_s)

    def _apply(self, role: str, response: session_pb2.SessionResponse | None) -> Event | None:
        """Take note of a message. Raises `AntiphonError` when it breaks the protocol."""
        if response is None:
            self._progress.add_end(role)
        elif response.HasField("report"):
            self._progress.add_report(role, response.report)
        elif response.HasField("chunk"):
            return self._progress.add_chunk(role, chunk_from_proto(response.chunk))
        return None

    async def _read(self, stream: StageStream) -> None:
        """Hand on what a stage sends until it ends its stream."""
        try:
            async for response in stream.responses():
                await self._receive(stream.role, response)
            if self._echo is None:
                await self._mailbox.put((stream.role, None))
        except AntiphonError as error:
            self._fail(error, may_echo=False)

    async def _receive(self, role: str, response: session_pb2.SessionResponse) -> None:
        match response.WhichOneof("message"):
            case "opened":
                self._unopened.discard(role)
                if not self._unopened:
                    self._all_opened.set()
            case "error":
                self._fail_by_word(role, error_from_proto(response.error))
            case "suspended":
                # The stage keeps the session for its resume window, and says so if the link
                # does not heal in it; a peer that died is told by its own stream.
                log.warning("%s: %s lost its link for a while", self.session_id, role)
            case "progress":
                self._progressed(role, response.progress.segment)
            case _:
                await self._all_opened.wait()
                await self._mailbox.put((role, response))

    def _progressed(self, role: str, segment: int) -> None:
        """A stage works on its part: the idle clock starts again, and so do those of the stages
        that wait for it."""
        if self._idle is not None and not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time() + self._wait_s())
        after = self._lineup.roles[self._lineup.roles.index(role) + 1 :]
        for stream in self._streams:
            if stream.role in after:
                stream.progress(segment)

    def _fail_by_word(self, role: str, error: AntiphonError) -> None:
        """A stage says that its part failed. Only the client can cancel: else it is a loss."""
        name_field(error, self._field_by_input)
        may_echo = error.code in _ECHO_CODES
        if isinstance(error, Cancelled):
            error = Unavailable(f"the stage {role} gave up: {error.message}", edge=error.edge)
        error.stage = error.stage or role
        self._fail(error, may_echo=may_echo)

    def _fail(self, error: AntiphonError, *, may_echo: bool) -> None:
        """End the call, at once for a cause and after a moment for what may be an echo."""
        if not may_echo:
            self.end_with(error)
        elif self._echo is None and not self._mailbox.failed:
            self._echo = error
            loop = asyncio.get_running_loop()
            self._echo_timer = loop.call_later(ROOT_CAUSE_WAIT_S, self.end_with, error)
