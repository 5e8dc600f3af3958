"""A response while it is being made: what it has said so far, and the events of that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from antiphon.conversation import ToolCall
from antiphon.errors import AntiphonError
from antiphon.segment import FinishReason
from antiphon_gateway.calls.events import (
    AudioProduced,
    Event,
    SegmentFinished,
    SegmentStarted,
    TextProduced,
    ToolCallPiece,
)
from antiphon_gateway.calls.failover.segment import FailoverSegment
from antiphon_gateway.calls.reservation import Reservation
from antiphon_gateway.calls.segment import CallSegment
from antiphon_gateway.conversations.events import (
    ConversationEvent,
    EndReason,
    Response,
    ResponseAudio,
    ResponseCall,
    ResponseCallText,
    ResponseCreated,
    ResponseEnded,
    ResponseItemBegun,
    ResponseItemEnded,
    ResponseStatus,
    ResponseText,
)
from antiphon_gateway.conversations.items import (
    CallContent,
    ConversationItem,
    SpokenContent,
    WrittenContent,
    item_as_heard,
    new_id,
)
from antiphon_gateway.conversations.settings import ConversationSettings


class RunningResponse:
    """`cancelled` is why it is to end before its time. The text of a spoken item may be ahead of
    its audio; `heard_s` is where the client says that its listener stopped."""

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
        self.cancelled: EndReason | None = None
        self.heard_s: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.settings = settings
        self._metadata = metadata
        self._place: Reservation | None = None
        self._segment: CallSegment | FailoverSegment | None = None
        self._text: list[str] = []
        self._sample_rate_hz = 0
        self._samples = 0
        self._first_audio: float | None = None
        self._created = False
        self._index: int | None = None
        # The latest call may still be being written.
        self._calls: list[ConversationItem] = []
        self._call_index = 0
        self._complete = False

    # -- what happens to it ------------------------------------------------------------

    def cancel(self, reason: EndReason) -> None:
        """Stop it: no delta follows."""
        self.cancelled = self.cancelled or reason
        if self._segment is not None:
            self._segment.cancel()
        elif self._place is not None:
            self._place.give_up()

    def waits_at(self, place: Reservation) -> None:
        """It has to wait for slots; it may have been cancelled before."""
        # Of those that it was asked of none answers.
        self._place, self._segment = place, None
        if self.cancelled:
            place.give_up()

    def answered_by(self, segment: CallSegment | FailoverSegment) -> None:
        """The stages have been asked; it may have been cancelled meanwhile."""
        self._segment = segment
        if self.cancelled:
            segment.cancel()

    # -- what is told of it ------------------------------------------------------------

    @property
    def item(self) -> ConversationItem:
        """The message as it stands."""
        text = "".join(self._text)
        if self.settings.spoken:
            seconds = self._samples / self._sample_rate_hz if self._sample_rate_hz else 0.0
            content: SpokenContent | WrittenContent = SpokenContent(text, seconds)
        else:
            content = WrittenContent(text)
        return ConversationItem(self.item_id, "assistant", (content,), self._complete)

    @property
    def item_to_keep(self) -> ConversationItem:
        """The message as far as it was heard."""
        return self.item if self.heard_s is None else item_as_heard(self.item, self.heard_s)

    @property
    def playing_s(self) -> float:
        """How long its audio plays on, where that began with the first of it."""
        if self._first_audio is None:
            return 0.0
        ends = self._first_audio + self._samples / self._sample_rate_hz
        return max(0.0, ends - asyncio.get_running_loop().time())

    def created(self) -> ResponseCreated:
        """Its first event; one that ends before it was made has it first of its last ones."""
        self._created = True
        return ResponseCreated(self._response())

    def begun(self, previous_item_id: str | None) -> ResponseItemBegun:
        """Its message is there."""
        self._index = len(self._calls)
        return ResponseItemBegun(self._response(), self._index, self.item, previous_item_id)

    def deltas(self, event: Event) -> Sequence[ConversationEvent]:
        """What an event of the segment amounts to; its end is the method `finished`."""
        match event:
            case SegmentStarted():
                self._sample_rate_hz = event.sample_rate_hz
            case TextProduced(text) if text:
                self._text.append(text)
                spoken = self.settings.spoken
                return [ResponseText(self.id, self._index or 0, self.item_id, text, spoken)]
            case AudioProduced(samples) if len(samples):
                if self._first_audio is None:
                    self._first_audio = asyncio.get_running_loop().time()
                self._samples += len(samples)
                return [ResponseAudio(self.id, self._index or 0, self.item_id, samples)]
        return []

    @property
    def may_call(self) -> bool:
        """Whether it may call functions: then it has a message only if it says something."""
        return bool(self.settings.offered[0])

    def begins_with(self, event: Event) -> bool:
        """Whether the event is the first of the message."""
        match event:
            case TextProduced(text) if text:
                return self._index is None
            case AudioProduced(samples) if len(samples):
                return self._index is None
        return False

    @property
    def latest_call(self) -> ConversationItem:
        """The item of the call that has begun last."""
        return self._calls[-1]

    @property
    def unfinished_call(self) -> str | None:
        """The id of the item of a call that has not ended: so far it is none."""
        return next((each.id for each in self._calls[-1:] if not each.complete), None)

    def begin_call(self, piece: ToolCallPiece) -> ConversationItem:
        """The item of a call that begins."""
        content = CallContent(ToolCall(piece.id, piece.name, ""))
        self._calls.append(
            ConversationItem(new_id("item"), "assistant", (content,), complete=False)
        )
        self._call_index = len(self._calls) - (self._index is None)
        return self.latest_call

    def call_begun(self, previous_item_id: str | None) -> ResponseItemBegun:
        """The item of the latest call is there."""
        return ResponseItemBegun(
            self._response(), self._call_index, self.latest_call, previous_item_id
        )

    def call_deltas(self, piece: ToolCallPiece) -> Sequence[ConversationEvent]:
        """More of the latest call, and its end if it has ended."""
        item, index = self.latest_call, self._call_index
        told: list[ConversationEvent] = []
        if piece.arguments:
            told.append(
                ResponseCallText(self.id, index, item.id, piece.id, piece.name, piece.arguments)
            )
        if piece.call is not None:
            whole = replace(item, contents=(CallContent(piece.call),), complete=True)
            self._calls[-1] = whole
            told.append(ResponseCall(self.id, index, item.id, piece.call))
            told.append(ResponseItemEnded(self._response(), index, whole))
        return told

    def finished(self, end: SegmentFinished) -> list[ConversationEvent]:
        """The end, or what a cancellation leaves."""
        self._complete = end.finish_reason is FinishReason.STOP
        status, reason = {
            FinishReason.STOP: (ResponseStatus.COMPLETED, None),
            FinishReason.LENGTH: (ResponseStatus.INCOMPLETE, EndReason.MAX_OUTPUT_TOKENS),
            FinishReason.CANCELLED: (ResponseStatus.CANCELLED, self.cancelled),
        }[end.finish_reason]
        return self._ended(self._response(status, reason=reason, end=end))

    def failed(self, error: AntiphonError) -> list[ConversationEvent]:
        """A stage has failed: the response ends, the conversation does not."""
        return self._ended(self._response(ResponseStatus.FAILED, error=error))

    def given_up(self) -> list[ConversationEvent]:
        """The end of one that was cancelled before anything was asked for."""
        return self._ended(self._response(ResponseStatus.CANCELLED, reason=self.cancelled))

    def _ended(self, response: Response) -> list[ConversationEvent]:
        first: list[ConversationEvent] = [] if self._created else [self.created()]
        if self._index is not None:
            first.append(ResponseItemEnded(response, self._index, self.item))
        return [*first, ResponseEnded(response)]

    @property
    def _items(self) -> tuple[ConversationItem, ...]:
        """The message and the calls that have ended, in their order."""
        items = [each for each in self._calls if each.complete]
        if self._index is not None:
            items.insert(self._index, self.item)
        return tuple(items)

    def _response(
        self,
        status: ResponseStatus = ResponseStatus.IN_PROGRESS,
        *,
        reason: EndReason | None = None,
        error: AntiphonError | None = None,
        end: SegmentFinished | None = None,
    ) -> Response:
        over = status is not ResponseStatus.IN_PROGRESS
        return Response(
            self.id,
            self.settings,
            self.in_conversation,
            self._metadata,
            status,
            reason,
            error,
            self._items if over else (),
            end.usage if end is not None else None,
            end.reports if end is not None else {},
        )
