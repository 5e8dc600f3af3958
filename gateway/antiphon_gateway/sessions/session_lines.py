"""Combines a session's lines to all of its stages.

Messages from the stages are merged in a bounded mailbox. The first error ends the session. All
lines are cancelled immediately, and the client receives the error before any messages that are
still in the mailbox. If an error may only be the consequence of another stage's failure, it is held
back briefly, so that the cause has time to arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from antiphon.errors import AntiphonError, Cancelled, ErrorCode, Internal, Unavailable
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.values.chunk import Tensor
from antiphon.wire.convert import error_from_proto
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.lineup import Lineup
from antiphon_gateway.media.attachments import name_field
from antiphon_gateway.sessions.mailbox import EventMailbox
from antiphon_gateway.sessions.opening import sample_chunk, session_open
from antiphon_gateway.sessions.stage_stream import OpenLine, StageStream

log = logging.getLogger("gateway.session")

StageMessage = tuple[str, session_pb2.SessionResponse | None]
"""A stage's role and a message from that stage. The message is None if the stage has ended its
stream.
"""
PIECE_SAMPLES = 1 << 16
"""The maximum number of samples of a live recording in one message."""
MAILBOX_MESSAGES = 16
"""The maximum number of messages from stages that can be waiting for a slow client. Beyond this
limit, the gateway stops reading from the stages.
"""
CLOSE_WAIT_S = 1.0

ROOT_CAUSE_WAIT_S = 0.5
"""How many seconds an error that may be a consequence is held back, so that its cause can arrive.
"""
ECHO_CODES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS, ErrorCode.CANCELLED})
"""Error codes that a stage may report because another stage has failed. A stage can also report
them for errors of its own.
"""

# Errors that count against a replica the next time a replica is chosen.
_FAILURES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS, ErrorCode.INTERNAL})


def _ignore(_: str = "") -> None:
    """Do nothing."""


@dataclass(slots=True)
class OpenSegment:
    """The current segment. `number` is its number, and `field_names` maps internal field names to
    those that the client used.

    `on_freed` is called with the role of each stage that has sent its report. `on_progress` is
    called when a stage reports progress.
    """

    number: int = -1
    field_names: Mapping[str, str] = field(default_factory=dict)
    on_freed: Callable[[str], None] = _ignore
    on_progress: Callable[[], None] = _ignore


class SessionLines:
    """The lines to all stages of a line-up. They are open from the first segment until `close`."""

    def __init__(
        self,
        session_id: str,
        lineup: Lineup,
        assignment: Assignment,
        windows: Mapping[str, int],
        open_line: OpenLine,
    ) -> None:
        self.assignment = assignment
        self.left = ""
        """The role of a stage that has ended its stream. If there is none, this is an
        empty string.
        """
        self._session_id = session_id
        self._lineup = lineup
        self._windows = windows
        self._open_line = open_line
        self._lines: dict[str, StageStream] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._mailbox: EventMailbox[StageMessage] = EventMailbox(MAILBOX_MESSAGES)
        self._echo: AntiphonError | None = None
        """The first error that may be the consequence of another stage's failure."""
        self._echo_timer: asyncio.TimerHandle | None = None
        self._segment = OpenSegment()
        self._steps: dict[str, session_pb2.SessionResponse] = {}
        """For each role, the latest progress report that the client hasn't received yet."""
        self._steps_late: dict[str, None] = {}
        """The roles whose progress report didn't fit into the mailbox."""
        self._inputs = 0
        self._unopened: set[str] = set()
        self._all_opened = asyncio.Event()
        self._slot_refused = False

    @property
    def failure(self) -> Exception | None:
        """The error that ended the session, or None."""
        return self._mailbox.failure

    @property
    def lost(self) -> bool:
        """Whether the session has failed, or a stage has left it."""
        return bool(self.failure or self._echo or self.left)

    @property
    def lost_stage(self) -> str:
        """The role of the stage that failed or left. If it isn't known, this is an empty string."""
        failure = self.failure or self._echo
        return failure.stage if isinstance(failure, AntiphonError) else self.left

    @property
    def heard_rate_hz(self) -> int:
        """The sample rate in Hz that the input stage expects for recordings, or 0 if it doesn't
        accept recordings.
        """
        return self._lineup.input_member.description.input_sample_rate_hz

    def next_input(self) -> int:
        """Return the sequence number for the next input chunk."""
        sequence, self._inputs = self._inputs, self._inputs + 1
        return sequence

    def open_segment(
        self,
        segment: OpenSegment,
        openings: Mapping[str, session_pb2.SegmentOpen],
        first: chunk_pb2.Chunk,
    ) -> None:
        """Open a segment on all stages at once. For the first segment, this also opens the session.
        The `first` chunk is sent to the stage that reads the input, together with the opening
        message.
        """
        lineup = self._lineup
        self._segment = segment
        self._unopened = set(lineup.roles)
        self._all_opened.clear()
        self._slot_refused = False
        for member in lineup.members:
            own, chunks = openings[member.role], (first,) if member is lineup.input_member else ()
            if member.role in self._lines:
                self._lines[member.role].open_segment(own, chunks)
                continue
            beginning = session_open(self._session_id, member, lineup, self._windows)
            beginning.first_segment.CopyFrom(own)
            beginning.first_input.extend(chunks)
            line = self._open_line(self.assignment[member.role], beginning)
            self._lines[member.role] = line
            self._readers.append(asyncio.create_task(self._read(line)))

    async def wait_answered(self) -> bool:
        """Wait until each stage has either given the segment a slot or refused it.

        Returns whether all stages have given it a slot. Raises the error that ended the session, if
        any.
        """
        await self._all_opened.wait()
        if self.failure is not None:
            raise self.failure
        return not self._slot_refused

    async def next_message(self) -> StageMessage:
        """Return the next message from any stage. A progress report is always the stage's latest.
        Raises the error that ended the session, if any.
        """
        role, response = await self._mailbox.get()
        for late in [*self._steps_late]:
            if self._mailbox.offer((late, self._steps[late])):
                del self._steps_late[late]
        if response is not None and response.HasField("progress"):
            response = self._steps.pop(role)
        return role, response

    def hear(self, samples: Tensor) -> None:
        """Send a live recording's samples to the input stage.

        Raises `ResourceExhausted` if too many samples are already waiting to be sent.
        """
        line, edge = self._lines[self._lineup.input_member.role], self._lineup.input_edge.name
        number = self._segment.number
        for start in range(0, len(samples), PIECE_SAMPLES):
            piece = samples[start : start + PIECE_SAMPLES]
            sequence = self.next_input()
            chunk = sample_chunk(self._session_id, edge, number, piece, sequence=sequence)
            line.send(session_pb2.SessionRequest(chunk=chunk))

    def finish_input(self, on_freed: Callable[[str], None] | None) -> None:
        """Tell all stages that a live segment's input is complete. See `AnswerAttempt` for
        `on_freed`.
        """
        self._segment.on_freed = on_freed or self._segment.on_freed
        finished = session_pb2.InputFinished(segment=self._segment.number)
        self._send_all(session_pb2.SessionRequest(input_finished=finished))

    def credit(self, edge: str, positions: int) -> None:
        """Grant credit to the producer of an edge that leads to the client. It may then send a
        total of `positions` positions.
        """
        number = self._segment.number
        credit = session_pb2.OutputCredit(edge=edge, segment=number, positions=positions)
        producer = self._lines[self._lineup.producer(edge).role]
        producer.send(session_pb2.SessionRequest(credit=credit))

    def cancel_segment(self) -> None:
        """Cancel the segment on all stages. Each stage sends a report once it has released the
        segment.
        """
        ending = session_pb2.CancelSegment(segment=self._segment.number)
        self._send_all(session_pb2.SessionRequest(cancel_segment=ending))

    def half_close(self) -> None:
        """Close the sending side, because there won't be any more segments. The stages then end
        their streams.
        """
        for line in self._lines.values():
            line.half_close()

    def end_with(self, error: AntiphonError) -> None:
        """End the session with an error right away. Only the first error counts."""
        if self.failure is None and error.code in _FAILURES:
            self.assignment.failed(error.stage)
        self._mailbox.fail(error)
        self._all_opened.set()
        self._cancel()

    async def wait_closed(self) -> None:
        """Close the sending side and wait briefly for the stages to end their streams. If this is
        cancelled, only the wait ends.
        """
        self._discard_echo()
        self.half_close()
        if self._readers:
            await asyncio.wait(self._readers, timeout=CLOSE_WAIT_S)

    async def close(self) -> None:
        """End all streams that are still open."""
        self._discard_echo()
        self._cancel()
        if running := [each for each in self._readers if not each.done()]:
            for reader in running:
                reader.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _cancel(self) -> None:
        for line in self._lines.values():
            line.cancel()

    def _discard_echo(self) -> None:
        """Don't end the session with the error that is being held back."""
        if self._echo_timer is not None:
            self._echo_timer.cancel()

    def _send_all(self, request: session_pb2.SessionRequest) -> None:
        for line in self._lines.values():
            line.send(request)

    async def _read(self, line: StageStream) -> None:
        """Process a stage's messages until it ends its stream."""
        try:
            async for response in line.responses():
                await self._receive(line.role, response)
            self.left = line.role
            self._answered(line.role)
            if line.gone:
                gone = session_pb2.StageGone(segment=self._segment.number, role=line.role)
                self._send_downstream(line.role, session_pb2.SessionRequest(gone=gone))
            if self._echo is None:
                await self._mailbox.put((line.role, None))
        except AntiphonError as error:
            self.end_with(error)
        except Exception:
            log.exception("%s: can't process a message from %s", self._session_id, line.role)
            self.end_with(Internal("internal error; see the gateway's log"))

    async def _receive(self, role: str, response: session_pb2.SessionResponse) -> None:
        match response.WhichOneof("message"):
            case "opened" | "segment_opened":
                self._answered(role)
            case "error":
                self._fail_by_word(role, error_from_proto(response.error))
            case "suspended":
                # The stage keeps the session for the length of its resume window. If the link isn't
                # restored in that time, the stage reports this. If the peer has died, its own
                # stream breaks.
                log.warning("%s: %s temporarily lost its link", self._session_id, role)
            case "progress":
                self._segment.on_progress()
                # This also restarts the idle timeouts of the stages waiting for this one.
                progress = session_pb2.Progress(segment=response.progress.segment)
                self._send_downstream(role, session_pb2.SessionRequest(progress=progress))
                if response.progress.steps_due:
                    await self._all_opened.wait()
                    self._hand_on_steps(role, response)
            case message:
                if message == "segment_refused":
                    self._slot_refused = True
                    self._answered(role)
                elif message == "report":
                    self.assignment.reported(role, response.report.finish_reason)
                    self._segment.on_freed(role)
                await self._all_opened.wait()
                await self._mailbox.put((role, response))

    def _hand_on_steps(self, role: str, response: session_pb2.SessionResponse) -> None:
        """Add a progress report to the mailbox, replacing any report that is still there. This
        never blocks, because a slow client must not hold up the progress messages to downstream
        stages.
        """
        waits = role in self._steps
        self._steps[role] = response
        if not waits and not self._mailbox.offer((role, response)):
            self._steps_late[role] = None

    def _answered(self, role: str) -> None:
        """Record that a stage has either opened or refused the segment."""
        self._unopened.discard(role)
        if not self._unopened:
            self._all_opened.set()

    def _send_downstream(self, role: str, request: session_pb2.SessionRequest) -> None:
        """Send a message to all stages downstream of a stage."""
        for each in self._downstream(role):
            each.send(request)

    def _downstream(self, role: str) -> Iterable[StageStream]:
        roles = self._lineup.roles
        return (self._lines[each] for each in roles[roles.index(role) + 1 :])

    def _fail_by_word(self, role: str, error: AntiphonError) -> None:
        """Handle an error reported by a stage.

        Only the client cancels segments. If the stage reports a cancellation, it is therefore
        considered lost.
        """
        name_field(error, self._segment.field_names)
        # The stage hasn't opened the segment yet, so this is a refusal. No other stage can have
        # caused it.
        refuses = role in self._unopened and error.stage in ("", role)
        may_echo = error.code in ECHO_CODES and not refuses
        if isinstance(error, Cancelled):
            error = Unavailable(
                f"the stage {role} aborted the session: {error.message}", edge=error.edge
            )
        error.stage = error.stage or role
        if not may_echo:
            self.end_with(error)
        elif self._echo is None:
            self._echo = error
            loop = asyncio.get_running_loop()
            self._echo_timer = loop.call_later(ROOT_CAUSE_WAIT_S, self.end_with, error)
