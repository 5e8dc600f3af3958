"""A single segment of a session. It turns messages from the stages into events.

The consumer pulls the events, so if a client is slow, reading from the stages slows down as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antiphon.deadlines.begun import Begun
from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.tracing.span import current_span
from antiphon.v1 import session_pb2
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import RecordingKey
from antiphon.wire.chunks import chunk_from_proto
from antiphon.wire.convert import error_from_proto
from antiphon_gateway.fleet.assignment import Assignment
from antiphon_gateway.media.sent_recordings import RecordingName, SentRecordings
from antiphon_gateway.outputs import AUDIO
from antiphon_gateway.sessions.events import AudioProduced, Event, SegmentFinished, SegmentStarted
from antiphon_gateway.sessions.progress import SegmentProgress
from antiphon_gateway.sessions.session_lines import SessionLines

Told = TypeVar("Told")


class CallSegment:
    """An async iterator over a segment's events, from `SegmentStarted` to `SegmentFinished`.

    If a stage has no free slot, the segment raises `ResourceExhausted` as soon as the other stages
    have released theirs. The session stays usable. If the segment `refers` to recordings from
    earlier segments, it may raise `NotFound` in place of its first event. In that case, the session
    is lost.
    """

    def __init__(
        self,
        lines: SessionLines,
        number: int,
        progress: SegmentProgress,
        started: SegmentStarted,
        sent: SentRecordings,
        *,
        window: int,
        last: bool,
        live: bool,
        deadline_s: float,
        idle_timeout_s: float,
    ) -> None:
        # The stages receive this span when the segment is opened.
        self.span = current_span.get().child("segment")
        self.number = number
        self.over = False
        self.refers = False
        self._heard = RecordingKey()
        self.drawn_seed = started.drawn_seed
        self._last = last
        self._lines = lines
        self._sent = sent
        self._progress = progress
        self._window = window
        self._idle_timeout_s = idle_timeout_s
        self._listening = live
        self._deadline_s = deadline_s
        self._deadline = time.monotonic() + deadline_s
        self._until_deadline = False
        self._idle: asyncio.Timeout | None = None
        self._cancelled = False
        self._refusal: AntiphonError | None = None
        self._started: SegmentStarted | None = started
        self._waiting: Event | None = None
        self._given: Event | None = None

    def __aiter__(self) -> CallSegment:
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Raises the `AntiphonError` that ended the segment.

        No event is lost if this is cancelled. The caller can then either continue to iterate or
        leave the segment.
        """
        if self.over:
            raise StopAsyncIteration
        self._credit_taken()
        if self._cancelled and not isinstance(self._waiting, SegmentFinished):
            self._waiting = None
        event = self._waiting or await self._next_event()
        self._waiting = None
        if self._started is not None:
            started, self._started, self._waiting = self._started, None, event
            return started
        self.over = isinstance(event, SegmentFinished)
        self._given = event
        return event

    async def wait_opened(self) -> None:
        """Wait until all stages have given the segment a slot. This must be called before any
        events are read.

        If a stage has no free slot, `ResourceExhausted` is raised as soon as the other stages have
        released theirs.
        """
        with self.span.child("open"):
            if not await self._in_time(self._lines.wait_answered()):
                async for _ in self:
                    pass

    async def wait_begun(self) -> None:
        """Wait for the first event, without consuming it. Raises the same errors as reading it."""
        if self._started is not None and self._waiting is None:
            self._waiting = await self._next_event()

    @property
    def assignment(self) -> Assignment:
        """The replicas that the segment runs on."""
        return self._lines.assignment

    def hear(self, samples: Tensor) -> None:
        """Append samples to a live segment's recording. They are float32 mono samples at
        `heard_rate_hz`.

        This has no effect if the segment has ended, or was cancelled or refused. Raises
        `ResourceExhausted` if the stages can't keep up.
        """
        if self._listening and not (self.over or self._cancelled):
            self._heard.add(samples)
            self._lines.hear(samples)

    @property
    def heard_rate_hz(self) -> int:
        """The sample rate in Hz that `hear` expects."""
        return self._lines.heard_rate_hz

    def finish_input(
        self, on_freed: Callable[[str], None] | None = None, name: RecordingName | None = None
    ) -> None:
        """End a live segment's recording, so that the stages answer it. The segment's time limit
        starts now.

        `name` is how later requests refer to the recording. See `AnswerAttempt` for `on_freed`.
        """
        if self._listening and not (self.over or self._cancelled):
            self._end_listening()
            if name is not None:
                self._sent.note(name, self._heard.key, self._heard.samples)
            self._lines.finish_input(on_freed)

    def _end_listening(self) -> None:
        """Start the time limit."""
        self._listening = False
        self._deadline = time.monotonic() + self._deadline_s
        self.extend()

    def cancel(self) -> None:
        """Cancel the segment on all stages. No more deltas follow, and the next event is
        `SegmentFinished`.

        This event arrives when all stages have released the segment, after which the session can
        open another one. Has no effect if the segment has already ended.
        """
        if not (self.over or self._cancelled):
            if self._listening:
                self._end_listening()
            self._cancelled = True
            self._progress.cancel()
            self._lines.cancel_segment()

    def extend(self) -> None:
        """Restart the idle timeout, because a stage has reported progress."""
        if self._idle is not None and not self._idle.expired():
            wait_s = self._wait_s()
            now = asyncio.get_running_loop().time()
            self._idle.reschedule(None if wait_s is None else now + wait_s)

    def _credit_taken(self) -> None:
        """Grant new credit for audio that the client has consumed."""
        taken, self._given = self._given, None
        if self._window and isinstance(taken, AudioProduced):
            positions = taken.first_sample + len(taken.samples) + self._window
            self._lines.credit(AUDIO, positions)

    async def _next_event(self) -> Event:
        """Return the next delta, or `SegmentFinished` once the segment is complete."""
        while not self._progress.complete:
            role, response = await self._in_time(self._lines.next_message())
            event = self._apply(role, response)
            if event is not None:
                return event
        if self._last:
            self._lines.half_close()
        self.span.end(self._refusal)
        if self._refusal is not None:
            self.over = True
            raise self._refusal
        return self._progress.finished()

    async def _in_time(self, told: Awaitable[Told]) -> Told:
        """Wait for a message from the stages. Raises `DeadlineExceeded` if there is none
        in time.
        """
        begun = Begun(told)
        if begun.done:
            return await begun
        try:
            async with asyncio.timeout(self._wait_s()) as self._idle:
                return await begun
        except TimeoutError:
            late = ", ".join(self._progress.unfinished)
            idle = f"no stage has sent anything for {self._idle_timeout_s:g} s"
            what = "the request timed out" if self._until_deadline else idle
            error = DeadlineExceeded(
                f"{what}; unfinished stages: {late}", stage=self._progress.unfinished[0]
            )
            self._lines.end_with(error)
            raise error from None
        finally:
            self._idle = None

    def _wait_s(self) -> float | None:
        """Return the number of seconds to wait for the next sign of life. This is the idle timeout
        or the time left for the whole segment, whichever is shorter.

        Returns None while the user is speaking, because the stage that receives the audio has its
        own timeout for this.
        """
        if self._listening:
            return None
        left_s = self._deadline - time.monotonic()
        self._until_deadline = left_s <= self._idle_timeout_s
        return min(self._idle_timeout_s, left_s)

    def _apply(self, role: str, response: session_pb2.SessionResponse | None) -> Event | None:
        """Process a message and return the resulting event, if there is one. Raises `AntiphonError`
        if the message violates the protocol.
        """
        if response is None:
            self._progress.add_end(role)
        elif response.HasField("segment_refused"):
            refusal = error_from_proto(response.segment_refused.error)
            refusal.stage = refusal.stage or role
            self._refusal = self._refusal or refusal
            self.cancel()
            self._progress.add_refusal(role)
        elif response.HasField("report"):
            self._progress.add_report(role, response.report)
        elif response.HasField("chunk"):
            return self._progress.add_chunk(role, chunk_from_proto(response.chunk))
        elif response.HasField("progress"):
            return self._progress.add_steps(role, response.progress)
        return None
