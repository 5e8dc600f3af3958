"""A session: the streams to all stages of a line-up, and its segments one after the other.

A session opens on all its stages at once, with its first segment, and merges what they send
through one bounded mailbox. Between segments the stages keep it parked. The first error ends
it: all streams are cancelled at once and the error overtakes what the client has not taken yet.
An error that may only be the echo of another stage's death waits a moment for the cause.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    ErrorCode,
    FailedPrecondition,
    Internal,
    Unavailable,
)
from antiphon.v1 import session_pb2
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import is_recording_key
from antiphon.values.segment import Delivery
from antiphon.wire.convert import error_from_proto
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.lineup import Lineup
from antiphon_gateway.media.attachments import name_field
from antiphon_gateway.media.sent_recordings import SentRecordings
from antiphon_gateway.orders.prepared import AnswerAttempt, PreparedRequest
from antiphon_gateway.orders.preparing import RequestPreparer, in_time, too_late
from antiphon_gateway.sessions.call_segment import CallSegment, StageMessage
from antiphon_gateway.sessions.events import SegmentStarted
from antiphon_gateway.sessions.mailbox import EventMailbox
from antiphon_gateway.sessions.opening import (
    input_chunk,
    sample_chunk,
    segment_openings,
    session_open,
)
from antiphon_gateway.sessions.progress import SegmentProgress
from antiphon_gateway.sessions.root_cause import ECHO_CODES, RootCause
from antiphon_gateway.sessions.stage_stream import StageStream

log = logging.getLogger("gateway.session")

MAX_WAITING_BYTES = 8 << 20
"""Of a live segment's samples, two minutes, that wait to be sent to a stage that takes none."""
PIECE_SAMPLES = 1 << 16
"""Most samples of a live segment's recording in one message."""
MAILBOX_MESSAGES = 16
"""Stage messages that wait for a slow client; further ones stay with the stages."""
CLOSE_WAIT_S = 1.0
FIRST_ATTEMPT = AnswerAttempt()

# Errors that say of a replica that it should not get the next session.
_FAILURES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS, ErrorCode.INTERNAL})


class Session:
    """One session on its stages. Enter it, ask for segments, leave it.

    Leaving frees every stage: in order when no segment is open, by cancelling otherwise.
    """

    def __init__(
        self,
        lineup: Lineup,
        assignment: Assignment,
        fleet: Fleet,
        config: GatewayConfig,
        deployed_delivery: Mapping[str, Delivery],
        preparer: RequestPreparer,
    ) -> None:
        self.session_id = str(uuid.uuid4())
        self.sent = SentRecordings()
        self._lineup = lineup
        self.assignment = assignment
        self._config = config
        self._deployed_delivery = deployed_delivery
        self._preparer = preparer
        self._model = fleet.model_name()
        self._windows = lineup.windows(config)
        self._mailbox: EventMailbox[StageMessage] = EventMailbox(MAILBOX_MESSAGES)
        self._streams: dict[str, StageStream] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._segment: CallSegment | None = None
        self._segments = self._inputs = 0
        self._sequences: dict[str, int] = {}
        self._field_names: Mapping[str, str] = {}
        self._unopened: set[str] = set()
        self._all_opened = asyncio.Event()
        self._slot_refused = self._done = False
        self._on_freed: Callable[[str], None] | None = None
        self._left = ""  # a stage that ended its stream
        self._cause = RootCause(self.end_with)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cause.close()
        try:
            if kind is None and self._readers and self._segment is not None and self._segment.over:
                self._half_close()
                await asyncio.wait(self._readers, timeout=CLOSE_WAIT_S)
        finally:
            # A client that leaves meanwhile ends the wait; the stages are let go all the same.
            if self._segment is not None:
                self._segment.span.end(error or self._mailbox.failure)
            for stream in self._streams.values():
                stream.cancel()
            for reader in self._readers:
                reader.cancel()
            await asyncio.gather(*self._readers, return_exceptions=True)

    async def ask(
        self,
        prepared: PreparedRequest,
        attempt: AnswerAttempt = FIRST_ATTEMPT,
        *,
        last: bool,
        live: bool = False,
    ) -> CallSegment:
        """Open the next segment on all stages; after the `last` one there is no other.

        A `live` one ends with a user's recording that is still being made (`AudioPart.live`):
        its samples are brought by `CallSegment.hear`. The attempt's time begins now, and goes on
        while recordings are decoded that an earlier session had; of a live one it begins when its
        input is finished.

        Raises what `RequestPreparer.fit` and `RequestMedia.decode` raise, `FailedPrecondition`
        while a segment is open or after the last one, and what ended the session. Cancelling opens
        nothing.
        """
        asked_at, names = time.monotonic(), prepared.field_names
        within_s = min(self._config.request_timeout_s, attempt.deadline_s)
        try:
            prepared = self._preparer.fit(prepared, self._lineup)
            if prepared.media.needs(self.sent):
                async with in_time(within_s):
                    await prepared.media.decode(self.sent)
        except AntiphonError as error:
            name_field(error, names)
            raise
        self._check_parked()
        left_s = within_s - (time.monotonic() - asked_at)
        if left_s <= 0:
            raise too_late()
        self._field_names, self._on_freed = names, attempt.on_freed
        return self._open(prepared, replace(attempt, deadline_s=left_s), last=last, live=live)

    def hear(self, segment: int, samples: Tensor) -> None:
        """Bring samples of a live segment's recording to the stage that reads it.

        Raises `ResourceExhausted` when more waits to be sent than may.
        """
        stream = self._streams[self._lineup.input_member.role]
        edge = self._lineup.input_edge.name
        for start in range(0, len(samples), PIECE_SAMPLES):
            piece = samples[start : start + PIECE_SAMPLES]
            chunk = sample_chunk(self.session_id, edge, segment, piece, sequence=self._next_input())
            stream.hear(chunk, MAX_WAITING_BYTES)

    @property
    def heard_rate_hz(self) -> int:
        """Samples a second of recordings, as the stage that reads them takes them; 0: none."""
        return self._lineup.input_member.description.input_sample_rate_hz

    @property
    def lost(self) -> bool:
        """Whether it has failed, or a stage has left it."""
        return bool(self._mailbox.failure or self._cause.echo or self._left)

    @property
    def lost_stage(self) -> str:
        """The role of the stage that failed or left; "" where none is known."""
        failure = self._mailbox.failure or self._cause.echo
        return failure.stage if isinstance(failure, AntiphonError) else self._left

    def finish_input(self, segment: int, on_freed: Callable[[str], None] | None) -> None:
        """Tell all stages that a live segment's input is complete; for `on_freed` see
        `AnswerAttempt`."""
        self._on_freed = on_freed or self._on_freed
        for stream in self._streams.values():
            stream.finish_input(segment)

    @property
    def parked(self) -> bool:
        """Whether another segment may be asked for."""
        between = self._segment is None or self._segment.over
        return between and not (self.lost or self._done)

    async def wait_answered(self) -> bool:
        """Return when all stages have given the segment a slot, or have said that they have none:
        whether all have. Raises the session's failure."""
        await self._all_opened.wait()
        if self._mailbox.failure is not None:
            raise self._mailbox.failure
        return not self._slot_refused

    async def next_message(self) -> StageMessage:
        """The next message of any stage. Raises the session's failure."""
        return await self._mailbox.get()

    def credit(self, edge: str, segment: int, positions: int) -> None:
        """Let the producer of an edge to the client send so many positions in all."""
        self._streams[self._lineup.producer(edge).role].credit(edge, segment, positions)

    def cancel_segment(self, segment: int) -> None:
        """End a segment on all stages; each reports it when it holds nothing of it any more."""
        for stream in self._streams.values():
            stream.cancel_segment(segment)

    def segment_over(self, *, last: bool) -> None:
        """All stages have completed the segment, and have the session parked."""
        if last:
            self._half_close()

    def end_with(self, error: AntiphonError) -> None:
        """End the session now with an error; the first one counts."""
        if self._mailbox.failure is None and error.code in _FAILURES:
            self.assignment.failed(error.stage)
        self._mailbox.fail(error)
        self._all_opened.set()
        for stream in self._streams.values():
            stream.cancel()

    def _next_input(self) -> int:
        """The sequence number of the next input chunk."""
        sequence, self._inputs = self._inputs, self._inputs + 1
        return sequence

    def _check_parked(self) -> None:
        """Raise unless another segment may be opened."""
        if self._mailbox.failure is not None:
            raise self._mailbox.failure
        asked = f"segment {self._segments} was asked for"
        if self._segment is not None and not self._segment.over:
            raise FailedPrecondition(f"{asked} while another is open")
        if self._done:
            raise FailedPrecondition(f"{asked} after the last one")
        if self._left:
            raise Unavailable(f"the stage {self._left} has ended the session", stage=self._left)

    def _open(
        self, prepared: PreparedRequest, attempt: AnswerAttempt, *, last: bool, live: bool
    ) -> CallSegment:
        """Open a segment, the first with the session itself, on all stages at once."""
        lineup, number, order = self._lineup, self._segments, prepared.order
        reader = lineup.input_member
        heard_s = prepared.media.seconds(self.sent)
        keeps = order.recordings_alone and reader.description.keeps_recordings
        said = prepared.conversation(self.sent, keeps=keeps)
        drawn_seed = order.drawn_seed if attempt.drawn_seed is None else attempt.drawn_seed
        segment = CallSegment(
            self,
            number,
            SegmentProgress(
                self.session_id,
                lineup,
                number,
                self._sequences,
                max_image_bytes=self._config.max_image_bytes,
            ),
            SegmentStarted(
                self.session_id, self._model, lineup.sample_rate_hz, heard_s, drawn_seed
            ),
            self._windows,
            last=last,
            live=live,
            deadline_s=attempt.deadline_s,
            idle_timeout_s=self._config.idle_timeout_s,
        )
        segment.refers = any(map(is_recording_key, said.recordings))
        openings = segment_openings(
            prepared,
            attempt,
            lineup,
            self._deployed_delivery,
            segment=number,
            last=last,
            live=live,
            traceparent=segment.span.traceparent,
        )
        first = input_chunk(
            self.session_id,
            said,
            lineup,
            segment=number,
            sequence=self._next_input(),
            last=last,
            live=live,
        )
        self._segment, self._segments, self._done = segment, number + 1, last
        self._unopened = set(lineup.roles)
        self._all_opened.clear()
        self._slot_refused = False
        for member in lineup.members:
            own, chunks = openings[member.role], (first,) if member is reader else ()
            if member.role in self._streams:
                self._streams[member.role].open_segment(own, chunks)
                continue
            beginning = session_open(self.session_id, member, lineup, self._windows)
            beginning.first_segment.CopyFrom(own)
            beginning.first_input.extend(chunks)
            stream = StageStream(self.assignment[member.role], beginning)
            self._streams[member.role] = stream
            self._readers.append(asyncio.create_task(self._read(stream)))
        return segment

    def _half_close(self) -> None:
        """Say that no segment follows; the stages then end their streams."""
        for stream in self._streams.values():
            stream.half_close()

    async def _read(self, stream: StageStream) -> None:
        """Hand on what a stage sends until it ends its stream."""
        try:
            async for response in stream.responses():
                await self._receive(stream.role, response)
            self._left = stream.role
            self._answered(stream.role)
            if stream.gone:
                self._tell_behind(stream.role)
            if self._cause.echo is None:
                await self._mailbox.put((stream.role, None))
        except AntiphonError as error:
            self._cause.fail(error)
        except Exception:
            log.exception("%s: what %s sent was not understood", self.session_id, stream.role)
            mistake = Internal("the gateway made a mistake; its log has more")
            self._cause.fail(mistake)

    async def _receive(self, role: str, response: session_pb2.SessionResponse) -> None:
        match response.WhichOneof("message"):
            case "opened" | "segment_opened":
                self._answered(role)
            case "error":
                self._fail_by_word(role, error_from_proto(response.error))
            case "suspended":
                # The stage keeps the session for its resume window, and says so if the link
                # does not heal in it; a peer that died is told by its own stream.
                log.warning("%s: %s lost its link for a while", self.session_id, role)
            case "progress":
                self._progressed(role, response.progress.segment)
            case message:
                if message == "segment_refused":
                    self._slot_refused = True
                    self._streams[role].give_slot_back()
                    self._answered(role)
                elif message == "report":
                    self._reported(role, response.report)
                await self._all_opened.wait()
                await self._mailbox.put((role, response))

    def _reported(self, role: str, report: session_pb2.SegmentReport) -> None:
        """A stage has done its part of the segment."""
        self._streams[role].reported()
        self.assignment.reported(role, report.finish_reason)
        if self._on_freed is not None:
            self._on_freed(role)

    def _answered(self, role: str) -> None:
        """A stage has opened the segment, or has refused to."""
        self._unopened.discard(role)
        if not self._unopened:
            self._all_opened.set()

    def _progressed(self, role: str, segment: int) -> None:
        """A stage works on its part: the idle clock starts again, and so do those of the stages
        that wait for it."""
        if self._segment is not None:
            self._segment.extend()
        for stream in self._behind(role):
            stream.progress(segment)

    def _tell_behind(self, role: str) -> None:
        """A stage is lost that has done its part; whether that has come those behind it know."""
        for stream in self._behind(role):
            stream.stage_gone(role, self._segments - 1)

    def _behind(self, role: str) -> Iterable[StageStream]:
        """The streams of the stages behind one."""
        roles = self._lineup.roles
        return (self._streams[each] for each in roles[roles.index(role) + 1 :])

    def _fail_by_word(self, role: str, error: AntiphonError) -> None:
        """A stage says that its part failed. Only the client can cancel: else it is a loss."""
        name_field(error, self._field_names)
        # Who has not opened yet refuses to: that is no echo of what happened to another.
        refuses = role in self._unopened and error.stage in ("", role)
        may_echo = error.code in ECHO_CODES and not refuses
        if isinstance(error, Cancelled):
            error = Unavailable(f"the stage {role} gave up: {error.message}", edge=error.edge)
        error.stage = error.stage or role
        (self._cause.fail_or_echo if may_echo else self._cause.fail)(error)
