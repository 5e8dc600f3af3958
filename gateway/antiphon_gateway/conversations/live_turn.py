"""A turn that is sent to the stages while the user is still speaking, before an answer has been
requested.

This is speculative, because the final request may turn out differently. Instructions can change,
another item can be inserted, and audio can be discarded. The order that is sent is the one that
would result if the user stopped speaking at that moment. Later, the response compares it with the
final order. If they differ, the turn is abandoned. If the turn fails, the error isn't reported.
Instead, the turn is answered with an ordinary request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from antiphon.errors import AntiphonError
from antiphon.tracing.span import NO_SPAN, TraceSpan, current_span
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import AudioPart, ConversationMessage
from antiphon_gateway.media.attachments import Attachments
from antiphon_gateway.media.audio_in import FULL_SCALE
from antiphon_gateway.media.audio_out import SAMPLE_BYTES
from antiphon_gateway.media.pcm_recording import PcmRecording
from antiphon_gateway.media.resampling import RecordingResampler
from antiphon_gateway.media.sent_recordings import RecordingName, name_of
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.call_segment import CallSegment
from antiphon_gateway.threads import Threads

log = logging.getLogger("gateway.conversations")
_THREADS = Threads("live-turns")

CATCH_UP_BYTES = 1 << 20
"""Pieces of audio that have at least this many bytes aren't resampled on the event loop. This is
about 20 seconds of audio.
"""


class _Rest(NamedTuple):
    """The part of a recording that hasn't been sent yet, and the recording's name."""

    pcm16: bytes
    name: RecordingName


class LiveTurn:
    """Turn number `number`, which consists of 16-bit samples at `rate_hz`.

    `opening` requests the segment. The segment's order ends with a recording that is still open.
    `span` is the trace span of the turn. If the turn is answered (`is_asked`), the response ends
    the span.
    """

    def __init__(
        self,
        number: int,
        rate_hz: int,
        order: Order,
        opening: Callable[[Order], Awaitable[CallSegment]],
        span: TraceSpan = NO_SPAN,
    ) -> None:
        self.number = number
        self.span = span
        self.is_asked = False
        self._listening = span.child("listening")
        self.heard = 0
        # The order that will be requested, except that its attachments don't include the last
        # recording.
        self._whole = _spoken(order, live=False)
        self._rate_hz = rate_hz
        self._waiting: list[bytes] = []
        self._resampler: RecordingResampler | None = None
        self._segment: CallSegment | None = None
        self._failed = False
        self._opened = asyncio.create_task(self._open(opening, _spoken(order, live=True)))

    @property
    def segment(self) -> CallSegment | None:
        """The segment that contains the turn. This is None until the segment is open, and if it has
        failed.
        """
        return self._segment

    async def hear(self, pcm16: bytes) -> None:
        """Add the next audio of the turn. There must be no gaps."""
        self.heard += len(pcm16) // SAMPLE_BYTES
        self._waiting.append(pcm16)
        if self._opened.done():
            await self._bring()

    def is_answered_by(self, order: Order) -> bool:
        """Return whether an order matches the part of this turn that has been sent."""
        return not self._failed and self._rest(order) is not None

    async def answer(self, order: Order, on_freed: Callable[[str], None]) -> CallSegment | None:
        """Complete the input and return the segment that answers the order.

        If the order doesn't match or the segment has failed, the turn is abandoned and None is
        returned. See `AnswerAttempt` for `on_freed`.
        """
        await asyncio.wait([self._opened])
        rest = self._rest(order)
        if rest is not None:
            self._waiting.append(rest.pcm16)
            await self._bring(last=True)
        if rest is None or self._failed or self._segment is None:
            await self.give_up()
            return None
        self._segment.finish_input(on_freed, rest.name)
        self._listening.end()
        return self._segment

    async def give_up(self) -> None:
        """Abandon the turn and wait until the stages have released it. The session may be lost as a
        result.
        """
        self._failed = True
        self._opened.cancel()
        await asyncio.wait([self._opened])
        self._waiting.clear()
        self._listening.end()
        try:
            await self._let_go()
        finally:
            if not self.is_asked:
                self.span.end()

    async def _let_go(self) -> None:
        if self._segment is None:
            return
        self._segment.cancel()
        try:
            async for _ in self._segment:
                pass
        except AntiphonError as error:
            log.info("the turn was abandoned: %s", error)

    async def _open(self, opening: Callable[[Order], Awaitable[CallSegment]], order: Order) -> None:
        current_span.set(self.span)
        try:
            self._segment = await opening(order)
        except AntiphonError as error:
            log.info("the turn won't be processed while the user is speaking: %s", error)
            self._failed = True

    def _rest(self, order: Order) -> _Rest | None:
        """Return the part of the order's last recording that hasn't been sent yet, or None if the
        order doesn't match.

        Recordings are compared by identity rather than by content, so the time doesn't depend on
        their length.
        """
        recordings = order.attachments.recordings
        spoken = recordings[-1].data if recordings else None
        if not isinstance(spoken, PcmRecording) or _question(order) != _question(self._whole):
            return None
        same = (spoken.turn, spoken.rate_hz) == (self.number, self._rate_hz)
        if not same or recordings[:-1] != self._whole.attachments.recordings:
            return None
        if spoken.samples < self.heard:
            return None
        return _Rest(spoken.behind(self.heard), name_of(recordings[-1].field, spoken))

    async def _bring(self, *, last: bool = False) -> None:
        """Send all audio that is waiting to the stages."""
        pcm16 = b"".join(self._waiting)
        self._waiting.clear()
        segment = self._segment
        if self._failed or segment is None:
            return
        try:
            if len(pcm16) < CATCH_UP_BYTES:
                samples = self._resample(segment, pcm16, last)
            else:
                samples = await _THREADS.run(self._resample, segment, pcm16, last)
            segment.hear(samples)
        except AntiphonError as error:
            log.info("the turn is no longer processed while the user is speaking: %s", error)
            self._failed = True

    def _resample(self, segment: CallSegment, pcm16: bytes, last: bool) -> Tensor:
        """Resample the next piece. Joining the results gives the same samples as resampling the
        whole recording at once.
        """
        samples = np.frombuffer(pcm16, "<i2").astype(np.float32) / np.float32(FULL_SCALE)
        if self._resampler is None:
            self._resampler = RecordingResampler(self._rate_hz, segment.heard_rate_hz)
        return self._resampler.add(samples, last=last)


def _spoken(order: Order, *, live: bool) -> Order:
    """Return the order with a recording added as a user message."""
    part = AudioPart(len(order.attachments.recordings), live=live)
    message = ConversationMessage("user", (part,))
    return replace(order, messages=(*order.messages, message))


def _question(order: Order) -> Order:
    """Return the order without its recordings and time limits, so that it can be compared."""
    return replace(order, attachments=Attachments(), timeout_s=0.0, start_within_s=0.0)
