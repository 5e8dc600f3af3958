"""The lines of a session to all its stages, as one.

What the stages send is merged through one bounded mailbox. The first error ends the session: all
lines are cancelled at once and the error overtakes what the client has not taken yet. An error that
may only be the echo of another stage's death waits a moment for the cause.
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
from antiphon_gateway.sessions.root_cause import ECHO_CODES, RootCause
from antiphon_gateway.sessions.stage_line import OpenLine, StageLine

log = logging.getLogger("gateway.session")

StageMessage = tuple[str, session_pb2.SessionResponse | None]
"""A stage's role and what it sent; None when it has ended its stream."""
PIECE_SAMPLES = 1 << 16
"""Most samples of a live segment's recording in one message."""
MAILBOX_MESSAGES = 16
"""Stage messages that wait for a slow client; further ones stay with the stages."""
CLOSE_WAIT_S = 1.0

# Errors that say of a replica that it should not get the next session.
_FAILURES = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.DATA_LOSS, ErrorCode.INTERNAL})


def _ignore(_: str = "") -> None:
    """Do nothing."""


@dataclass(slots=True)
class OpenSegment:
    """The segment that the lines have open: its number, the client's names of fields, and whom to
    call: `on_freed` with the role of each stage that has reported, `on_progress` while one works.
    """

    number: int = -1
    field_names: Mapping[str, str] = field(default_factory=dict)
    on_freed: Callable[[str], None] = _ignore
    on_progress: Callable[[], None] = _ignore


class SessionLines:
    """A line to each stage of a line-up, open from the first segment until `close`."""

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
        """The role of a stage that has ended its stream, if any has."""
        self._session_id = session_id
        self._lineup = lineup
        self._windows = windows
        self._open_line = open_line
        self._lines: dict[str, StageLine] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._mailbox: EventMailbox[StageMessage] = EventMailbox(MAILBOX_MESSAGES)
        self._cause = RootCause(self.end_with)
        self._segment = OpenSegment()
        self._steps: dict[str, session_pb2.SessionResponse] = {}
        """The newest report of steps that the client has not got, by role."""
        self._steps_late: dict[str, None] = {}
        """Roles whose report found no room in the mailbox."""
        self._inputs = 0
        self._unopened: set[str] = set()
        self._all_opened = asyncio.Event()
        self._slot_refused = False

    @property
    def failure(self) -> Exception | None:
        """What has ended the session."""
        return self._mailbox.failure

    @property
    def lost(self) -> bool:
        """Whether the session has failed, or a stage has left it."""
        return bool(self.failure or self._cause.echo or self.left)

    @property
    def lost_stage(self) -> str:
        """The role of the stage that failed or left; "" if none is known."""
        failure = self.failure or self._cause.echo
        return failure.stage if isinstance(failure, AntiphonError) else self.left

    @property
    def heard_rate_hz(self) -> int:
        """Samples a second of recordings, as the stage that reads them takes them; 0: none."""
        return self._lineup.input_member.description.input_sample_rate_hz

    def next_input(self) -> int:
        """The sequence number of the next input chunk."""
        sequence, self._inputs = self._inputs, self._inputs + 1
        return sequence

    def open_segment(
        self,
        segment: OpenSegment,
        openings: Mapping[str, session_pb2.SegmentOpen],
        first: chunk_pb2.Chunk,
    ) -> None:
        """Open a segment, the first with the session itself, on all stages at once. The stage that
        reads the input gets the `first` chunk with it."""
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
        """Return when all stages have given the segment a slot, or have refused.

        Returns whether all have given one. Raises the session's error.
        """
        await self._all_opened.wait()
        if self.failure is not None:
            raise self.failure
        return not self._slot_refused

    async def next_message(self) -> StageMessage:
        """The next message of any stage; of reports of steps, the newest. Raises the session's
        failure."""
        role, response = await self._mailbox.get()
        for late in [*self._steps_late]:
            if self._mailbox.offer((late, self._steps[late])):
                del self._steps_late[late]
        if response is not None and response.HasField("progress"):
            response = self._steps.pop(role)
        return role, response

    def hear(self, samples: Tensor) -> None:
        """Bring samples of a live segment's recording to the stage that reads it.

        Raises `ResourceExhausted` when more waits to be sent than may.
        """
        line, edge = self._lines[self._lineup.input_member.role], self._lineup.input_edge.name
        number = self._segment.number
        for start in range(0, len(samples), PIECE_SAMPLES):
            piece = samples[start : start + PIECE_SAMPLES]
            sequence = self.next_input()
            chunk = sample_chunk(self._session_id, edge, number, piece, sequence=sequence)
            line.send(session_pb2.SessionRequest(chunk=chunk))

    def finish_input(self, on_freed: Callable[[str], None] | None) -> None:
        """Notify all stages that the input of a live segment is complete; for `on_freed` see
        `AnswerAttempt`."""
        self._segment.on_freed = on_freed or self._segment.on_freed
        finished = session_pb2.InputFinished(segment=self._segment.number)
        self._send_all(session_pb2.SessionRequest(input_finished=finished))

    def credit(self, edge: str, positions: int) -> None:
        """Let the producer of an edge to the client send so many positions in all."""
        number = self._segment.number
        credit = session_pb2.OutputCredit(edge=edge, segment=number, positions=positions)
        producer = self._lines[self._lineup.producer(edge).role]
        producer.send(session_pb2.SessionRequest(credit=credit))

    def cancel_segment(self) -> None:
        """End the segment on all stages; each reports it when it holds nothing of it any more."""
        ending = session_pb2.CancelSegment(segment=self._segment.number)
        self._send_all(session_pb2.SessionRequest(cancel_segment=ending))

    def half_close(self) -> None:
        """Close the sending side: no segment follows, and the stages then end their streams."""
        for line in self._lines.values():
            line.half_close()

    def end_with(self, error: AntiphonError) -> None:
        """End the session now with an error; the first one counts."""
        if self.failure is None and error.code in _FAILURES:
            self.assignment.failed(error.stage)
        self._mailbox.fail(error)
        self._all_opened.set()
        self._cancel()

    async def wait_closed(self) -> None:
        """Half-close, and return when the stages have ended their streams, or soon. Cancelling
        ends the wait alone."""
        self._cause.close()
        self.half_close()
        if self._readers:
            await asyncio.wait(self._readers, timeout=CLOSE_WAIT_S)

    async def close(self) -> None:
        """End the streams that are still open."""
        self._cause.close()
        self._cancel()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _cancel(self) -> None:
        for line in self._lines.values():
            line.cancel()

    def _send_all(self, request: session_pb2.SessionRequest) -> None:
        for line in self._lines.values():
            line.send(request)

    async def _read(self, line: StageLine) -> None:
        """Hand on what a stage sends until it ends its stream."""
        try:
            async for response in line.responses():
                await self._receive(line.role, response)
            self.left = line.role
            self._answered(line.role)
            if line.gone:
                gone = session_pb2.StageGone(segment=self._segment.number, role=line.role)
                self._send_downstream(line.role, session_pb2.SessionRequest(gone=gone))
            if self._cause.echo is None:
                await self._mailbox.put((line.role, None))
        except AntiphonError as error:
            self._cause.fail(error)
        except Exception:
            log.exception("%s: what %s sent was not understood", self._session_id, line.role)
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
                log.warning("%s: %s lost its link for a while", self._session_id, role)
            case "progress":
                self._segment.on_progress()
                # The idle clocks of the stages that wait for it start again, too.
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
        """Put a report of steps into the mailbox, or in the place of one that waits. A slow client
        does not hold up its stage, whose progress the stages after it need."""
        waits = role in self._steps
        self._steps[role] = response
        if not waits and not self._mailbox.offer((role, response)):
            self._steps_late[role] = None

    def _answered(self, role: str) -> None:
        """A stage has opened the segment, or has refused to."""
        self._unopened.discard(role)
        if not self._unopened:
            self._all_opened.set()

    def _send_downstream(self, role: str, request: session_pb2.SessionRequest) -> None:
        """Send a message to the stages after one."""
        for each in self._downstream(role):
            each.send(request)

    def _downstream(self, role: str) -> Iterable[StageLine]:
        roles = self._lineup.roles
        return (self._lines[each] for each in roles[roles.index(role) + 1 :])

    def _fail_by_word(self, role: str, error: AntiphonError) -> None:
        """Process a stage's report that its part failed.

        A report of a cancellation counts as a loss of the stage, because only the client cancels.
        """
        name_field(error, self._segment.field_names)
        # Who has not opened yet refuses to: that is no echo of what happened to another.
        refuses = role in self._unopened and error.stage in ("", role)
        may_echo = error.code in ECHO_CODES and not refuses
        if isinstance(error, Cancelled):
            error = Unavailable(f"the stage {role} gave up: {error.message}", edge=error.edge)
        error.stage = error.stage or role
        (self._cause.fail_or_echo if may_echo else self._cause.fail)(error)
