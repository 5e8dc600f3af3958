"""A session. It runs segments one after another on the stages of a line-up.

The session and its first segment are opened together, on all stages at once. The stages keep the
session open between segments. The first error ends it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, FailedPrecondition, Unavailable
from antiphon.values.conversation import is_recording_key
from antiphon.values.segment import Delivery
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.fleet.lineup import Lineup
from antiphon_gateway.media.attachments import name_field
from antiphon_gateway.media.sent_recordings import SentRecordings
from antiphon_gateway.orders.prepared import AnswerAttempt, PreparedRequest
from antiphon_gateway.orders.preparing import RequestPreparer, in_time, too_late
from antiphon_gateway.outputs import AUDIO
from antiphon_gateway.sessions.call_segment import CallSegment
from antiphon_gateway.sessions.events import SegmentStarted
from antiphon_gateway.sessions.opening import input_chunk, segment_openings
from antiphon_gateway.sessions.progress import SegmentProgress
from antiphon_gateway.sessions.session_lines import OpenSegment, SessionLines
from antiphon_gateway.sessions.stage_stream import OpenLine

FIRST_ATTEMPT = AnswerAttempt()


class Session:
    """A session on its stages. Enter it as a context, request any number of segments, and then
    leave it.

    If no segment is open when the context is left, the stages are closed cleanly. Otherwise, the
    session is cancelled. `model` is the name of the model that appears in events.
    """

    def __init__(
        self,
        lineup: Lineup,
        assignment: Assignment,
        model: str,
        config: GatewayConfig,
        deployed_delivery: Mapping[str, Delivery],
        preparer: RequestPreparer,
        open_line: OpenLine,
    ) -> None:
        self.session_id = str(uuid.uuid4())
        self.sent = SentRecordings()
        self.assignment = assignment
        self._lineup = lineup
        self._model = model
        self._config = config
        self._deployed_delivery = deployed_delivery
        self._preparer = preparer
        windows = lineup.windows
        self._window = windows.get(AUDIO, 0)
        self._lines = SessionLines(self.session_id, lineup, assignment, windows, open_line)
        self._segment: CallSegment | None = None
        self._segments = 0
        self._sequences: dict[str, int] = {}
        self._done = False

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._segment is not None and self._segment.over:
                await self._lines.wait_closed()
        finally:
            # If the client leaves during this wait, the wait is cut short, but the stages are
            # released all the same.
            if self._segment is not None:
                self._segment.span.end(error or self._lines.failure)
            await self._lines.close()

    async def ask(
        self,
        prepared: PreparedRequest,
        attempt: AnswerAttempt = FIRST_ATTEMPT,
        *,
        last: bool,
        live: bool = False,
    ) -> CallSegment:
        """Open the next segment on all stages. After the `last` segment, no more segments can be
        opened.

        A `live` segment ends with a recording that is still in progress (`AudioPart.live`). Its
        samples have to be passed to `CallSegment.hear`. The time limit of the attempt starts now
        and includes the time to decode recordings from an earlier session. For a live segment, it
        starts again when the input is complete.

        Raises `FailedPrecondition` if a segment is open or the last one has already been opened. If
        the session has ended with an error, that error is raised. Also raises the errors of
        `RequestPreparer.fit` and `RequestMedia.decode`. If this is cancelled, no segment is opened.
        """
        asked_at = time.monotonic()
        within_s = min(self._config.limits.request_timeout_s, attempt.deadline_s)
        try:
            prepared = self._preparer.fit(prepared, self._lineup)
            if prepared.media.needs(self.sent):
                async with in_time(within_s):
                    await prepared.media.decode(self.sent)
        except AntiphonError as error:
            name_field(error, prepared.field_names)
            raise
        self._check_parked()
        left_s = within_s - (time.monotonic() - asked_at)
        if left_s <= 0:
            raise too_late()
        return self._open(prepared, replace(attempt, deadline_s=left_s), last=last, live=live)

    @property
    def lost(self) -> bool:
        """Whether the session has failed, or a stage has left it."""
        return self._lines.lost

    @property
    def lost_stage(self) -> str:
        """The role of the stage that failed or left. If it isn't known, this is an empty string."""
        return self._lines.lost_stage

    @property
    def parked(self) -> bool:
        """Whether another segment can be opened."""
        between = self._segment is None or self._segment.over
        return between and not (self.lost or self._done)

    def end_with(self, error: AntiphonError) -> None:
        """End the session with an error right away. Only the first error counts."""
        self._lines.end_with(error)

    def _check_parked(self) -> None:
        """Raise an error if another segment can't be opened."""
        if self._lines.failure is not None:
            raise self._lines.failure
        asked = f"segment {self._segments} was asked for"
        if self._segment is not None and not self._segment.over:
            raise FailedPrecondition(f"{asked} while another is open")
        if self._done:
            raise FailedPrecondition(f"{asked} after the last one")
        if left := self._lines.left:
            raise Unavailable(f"the stage {left} has ended the session", stage=left)

    def _open(
        self, prepared: PreparedRequest, attempt: AnswerAttempt, *, last: bool, live: bool
    ) -> CallSegment:
        """Open a segment on all stages at once. The first segment also opens the session."""
        number, heard_s = self._segments, prepared.media.seconds(self.sent)
        said = prepared.conversation(self.sent, self._lineup)
        segment = self._new_segment(prepared.seed(attempt), heard_s, attempt, last=last, live=live)
        segment.refers = any(map(is_recording_key, said.recordings))
        openings = segment_openings(
            prepared,
            attempt,
            self._lineup,
            self._deployed_delivery,
            segment=number,
            last=last,
            live=live,
            traceparent=segment.span.traceparent,
        )
        first = input_chunk(
            self.session_id,
            said,
            self._lineup,
            segment=number,
            sequence=self._lines.next_input(),
            last=last,
            live=live,
        )
        self._segment, self._segments, self._done = segment, number + 1, last
        opened = OpenSegment(number, prepared.field_names, attempt.on_freed, segment.extend)
        self._lines.open_segment(opened, openings, first)
        return segment

    def _new_segment(
        self, seed: int, heard_s: float, attempt: AnswerAttempt, *, last: bool, live: bool
    ) -> CallSegment:
        """Create the next segment, without opening it yet."""
        return CallSegment(
            self._lines,
            self._segments,
            SegmentProgress(
                self.session_id,
                self._lineup,
                self._segments,
                self._sequences,
                max_image_bytes=self._config.limits.max_image_bytes,
            ),
            SegmentStarted(
                self.session_id, self._model, self._lineup.sample_rate_hz, heard_s, seed
            ),
            self.sent,
            window=self._window,
            last=last,
            live=live,
            deadline_s=attempt.deadline_s,
            idle_timeout_s=self._config.limits.idle_timeout_s,
        )
