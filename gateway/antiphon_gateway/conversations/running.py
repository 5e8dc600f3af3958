"""A running response, with the output it has produced so far and the resulting events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from antiphon.errors import AntiphonError
from antiphon.values.answer import FunctionCall
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon.values.live_conversation import (
    EndedBy,
    Item,
    ItemPart,
    ReplyStatus,
    ResponseDone,
    ResponseFunctionCall,
    ResponseFunctionCallDelta,
    ResponseStarted,
    ResponseTextDelta,
    SpokenPart,
)
from antiphon.values.segment import FinishReason
from antiphon_gateway.admission.reservation import Reservation
from antiphon_gateway.conversations.events import (
    ConversationEvent,
    ItemDone,
    ItemStarted,
    Response,
    ResponseSamples,
)
from antiphon_gateway.conversations.items import item_as_heard, new_id
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.failover.failover_segment import FailoverSegment
from antiphon_gateway.sessions.call_segment import CallSegment
from antiphon_gateway.sessions.events import (
    AudioProduced,
    Event,
    SegmentFinished,
    SegmentStarted,
    TextProduced,
    ToolCallPiece,
)

_ENDS: Mapping[FinishReason, tuple[ReplyStatus, EndedBy]] = {
    FinishReason.STOP: ("completed", ""),
    FinishReason.LENGTH: ("incomplete", "max_output_tokens"),
    FinishReason.CANCELLED: ("cancelled", ""),
}
"""Maps each finish reason to a response status and its reason. If the response was cancelled, the
reason for the cancellation is used instead.
"""


class RunningResponse:
    """A running response. `cancelled` is the reason for its cancellation, if it was cancelled.

    The text of a spoken item may be ahead of its audio. `heard_s` is the playback position reported
    by the client, in seconds.
    """

    def __init__(
        self,
        response_id: str,
        item_id: str,
        settings: ConversationSettings,
        metadata: Mapping[str, str] | None,
        *,
        in_conversation: bool,
    ) -> None:
        self.id = response_id
        self.item_id = item_id
        self.in_conversation = in_conversation
        self.cancelled: EndedBy = ""
        self.heard_s: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.settings = settings
        self._metadata = metadata
        self._place: Reservation | None = None
        self._segment: CallSegment | FailoverSegment | None = None
        self._text: list[str] = []
        self._to_read = ""
        self._sample_rate_hz = 0
        self._samples = 0
        self._first_audio: float | None = None
        self._created = False
        self._index: int | None = None
        # The latest call may not be complete yet.
        self._calls: list[Item] = []
        self._call_index = 0
        self._complete = False

    # -- what happens to it ------------------------------------------------------------

    def cancel(self, reason: EndedBy) -> None:
        """Cancel the response. No more deltas are sent for it."""
        self.cancelled = self.cancelled or reason
        if self._segment is not None:
            self._segment.cancel()
        elif self._place is not None:
            self._place.give_up()

    def waits_at(self, place: Reservation) -> None:
        """Record that the response has to wait for slots. If the response has already been
        cancelled, the wait is given up.
        """
        # The earlier requests haven't been answered.
        self._place, self._segment = place, None
        if self.cancelled:
            place.give_up()

    def answered_by(self, segment: CallSegment | FailoverSegment) -> None:
        """Record that the stages have received the request. The response may have been cancelled in
        the meantime.
        """
        self._segment = segment
        if self.cancelled:
            segment.cancel()

    def reads(self, messages: Iterable[ConversationMessage]) -> None:
        """Use the text of these messages as the transcript, because the response reads it aloud
        verbatim.
        """
        parts = (part for message in messages for part in message.parts)
        self._to_read = "".join(part.text for part in parts if isinstance(part, TextPart))

    # -- events ------------------------------------------------------------------------

    @property
    def item(self) -> Item:
        """The current state of the message."""
        text = "".join(self._text)
        if self.settings.spoken:
            seconds = self._samples / self._sample_rate_hz if self._sample_rate_hz else 0.0
            part: ItemPart = SpokenPart(text, seconds)
        else:
            part = text
        return Item("assistant", (part,), self.item_id, self._complete)

    @property
    def item_to_keep(self) -> Item:
        """The message up to the current playback position."""
        return self.item if self.heard_s is None else item_as_heard(self.item, self.heard_s)

    @property
    def playing_s(self) -> float:
        """How many seconds are left to play, assuming that playback started when the first audio
        was sent.
        """
        if self._first_audio is None:
            return 0.0
        ends = self._first_audio + self._samples / self._sample_rate_hz
        return max(0.0, ends - asyncio.get_running_loop().time())

    def created(self) -> ResponseStarted:
        """Return the first event of the response. If the response ends before it has started, this
        event is sent before the final ones.
        """
        self._created = True
        return ResponseStarted(self._response())

    def begun(self, previous_item_id: str) -> ItemStarted:
        """Return the event that reports the start of the message."""
        self._index = len(self._calls)
        return self._item_started(self.item, self._index, previous_item_id)

    def deltas(self, event: Event) -> Sequence[ConversationEvent]:
        """Convert an event of the segment. The final event is handled by `finished`."""
        match event:
            case SegmentStarted():
                self._sample_rate_hz = event.sample_rate_hz
                if self._to_read:
                    text, self._to_read = self._to_read, ""
                    return self._said(text)
            case TextProduced(text) if text:
                return self._said(text)
            case AudioProduced(samples) if len(samples):
                if self._first_audio is None:
                    self._first_audio = asyncio.get_running_loop().time()
                self._samples += len(samples)
                return [ResponseSamples(self.id, self.item_id, samples, self._index or 0)]
        return []

    def _said(self, text: str) -> Sequence[ConversationEvent]:
        self._text.append(text)
        return [ResponseTextDelta(self.id, self.item_id, text, self._index or 0)]

    @property
    def may_call(self) -> bool:
        """Whether the response may contain function calls. If so, it contains a message only if
        there is any text.
        """
        return bool(self.settings.offered[0])

    def begins_with(self, event: Event) -> bool:
        """Return whether the event is the first one for the message."""
        match event:
            case TextProduced(text) if text:
                return self._index is None
            case AudioProduced(samples) if len(samples):
                return self._index is None
        return False

    @property
    def latest_call(self) -> Item:
        """The item of the most recent function call."""
        return self._calls[-1]

    @property
    def unfinished_call(self) -> str | None:
        """The item ID of a function call that isn't valid because it is still incomplete. None if
        there is no such call.
        """
        return next((each.id for each in self._calls[-1:] if not each.complete), None)

    def begin_call(self, piece: ToolCallPiece) -> Item:
        """Return the item for a call that is about to start."""
        call = FunctionCall(piece.id, piece.name, "")
        self._calls.append(Item("assistant", (call,), new_id("item"), complete=False))
        self._call_index = len(self._calls) - (self._index is None)
        return self.latest_call

    def call_begun(self, previous_item_id: str) -> ItemStarted:
        """Return the event that reports the item of the latest call."""
        return self._item_started(self.latest_call, self._call_index, previous_item_id)

    def call_deltas(self, piece: ToolCallPiece) -> Sequence[ConversationEvent]:
        """Return the events for the next piece of the latest call. If the call is complete, this
        includes the events for its end.
        """
        item, index = self.latest_call, self._call_index
        told: list[ConversationEvent] = []
        if piece.arguments:
            call = (piece.id, piece.name, piece.arguments)
            told.append(ResponseFunctionCallDelta(self.id, item.id, *call, index))
        if piece.call is not None:
            made = FunctionCall(piece.call.id, piece.call.name, piece.call.arguments)
            whole = replace(item, parts=(made,), complete=True)
            self._calls[-1] = whole
            told.append(ResponseFunctionCall(self.id, item.id, made, index))
            told.append(ItemDone(self.id, whole, index, response=self._response()))
        return told

    def finished(self, end: SegmentFinished) -> list[ConversationEvent]:
        """Return the events for the end of a response that was completed or cancelled."""
        self._complete = end.finish_reason is FinishReason.STOP
        status, reason = _ENDS[end.finish_reason]
        if end.finish_reason is FinishReason.CANCELLED:
            reason = self.cancelled
        return self._ended(self._response(status, reason=reason, end=end))

    def failed(self, error: AntiphonError) -> list[ConversationEvent]:
        """Return the events for a response that has failed. The conversation continues."""
        return self._ended(self._response("failed", error=error))

    def given_up(self) -> list[ConversationEvent]:
        """Return the events for a response that was cancelled before it was requested from the
        stages.
        """
        return self._ended(self._response("cancelled", reason=self.cancelled))

    def _ended(self, response: Response) -> list[ConversationEvent]:
        first: list[ConversationEvent] = [] if self._created else [self.created()]
        if self._index is not None:
            first.append(ItemDone(self.id, self.item, self._index, response=response))
        return [*first, ResponseDone(response)]

    def _item_started(self, item: Item, index: int, previous_item_id: str) -> ItemStarted:
        place = (self.id, item.id, index, previous_item_id)
        return ItemStarted(*place, response=self._response(), item=item)

    @property
    def _items(self) -> tuple[Item, ...]:
        """The message and the complete function calls, in order."""
        items = [each for each in self._calls if each.complete]
        if self._index is not None:
            items.insert(self._index, self.item)
        return tuple(items)

    def _response(
        self,
        status: ReplyStatus = "in_progress",
        *,
        reason: EndedBy = "",
        error: AntiphonError | None = None,
        end: SegmentFinished | None = None,
    ) -> Response:
        over = status != "in_progress"
        return Response(
            self.id,
            status,
            not self.in_conversation,
            self._metadata,
            self._items if over else (),
            end.usage if end is not None else None,
            error,
            reason,
            settings=self.settings,
            reports=end.reports if end is not None else {},
        )
