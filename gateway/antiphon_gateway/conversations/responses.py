"""The responses of a conversation. They are requested by commands and run concurrently with them.
They can also be cancelled.

Only one response at a time can answer the conversation, but several others can run out of band.
Responses share the `EventSender` with commands. A response picks its next event only when the event
can actually be sent, so nothing is sent for it after a cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, Cancelled, InvalidArgument, ResourceExhausted
from antiphon.tracing.span import enclosing_span
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon.values.live_conversation import CreateResponse, EndedBy, Item, ItemRemoved
from antiphon_gateway.admission.reservation import GivenUp
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.conversations.client import ConversationClient, LogEntry
from antiphon_gateway.conversations.errors import NoResponse, ResponseUnderWay
from antiphon_gateway.conversations.event_sender import EventSender
from antiphon_gateway.conversations.events import ConversationEvent
from antiphon_gateway.conversations.items import ItemList, messages_of, new_id, text_to_read
from antiphon_gateway.conversations.kept_session import ConversationSession
from antiphon_gateway.conversations.running import RunningResponse
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.conversations.turn_detector import TurnSoFar
from antiphon_gateway.failover.failover_segment import FailoverSegment
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import (
    Event,
    SegmentFinished,
    ToolCallPiece,
    ToolCallsProduced,
)

MOST_OUT_OF_BAND = 4
"""The maximum number of responses that can run out of band at the same time."""
LISTEN_PIECE_S = 0.4
"""A turn is sent to the stages in pieces of this many seconds. A message that contains such a piece
is no more expensive than one with 20 ms of audio. The audio that remains at the end of a turn is
sent together with the end.
"""
MOST_ENDING = 2
"""The maximum number of cancelled responses that another response can wait for. They count until
the stages have released them.
"""


class Responses:
    """The responses of a conversation. Call `close` when the conversation ends.

    When an answer to the conversation has completed, `answered` is called with the number of
    seconds for which its audio will keep playing.
    """

    def __init__(
        self,
        calls: Calls,
        config: GatewayConfig,
        items: ItemList,
        telling: EventSender,
        client: ConversationClient,
        answered: Callable[[float], None],
    ) -> None:
        self._calls = calls
        self._config = config
        self._items = items
        self._telling = telling
        self._client = client
        self._answered = answered
        self._session = ConversationSession(calls, listen_idle_s=config.conversations.listen_idle_s)
        self._running: dict[str, RunningResponse] = {}
        # This includes tasks that are still sending their final events.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether any response is running, or still has events to send."""
        return bool(self._tasks)

    async def close(self) -> None:
        """Cancel all running responses and release the stages."""
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await self._session.close()

    async def settled(self) -> None:
        """Wait until the final events of all requested responses have been sent."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def create(self, asked: CreateResponse, settings: ConversationSettings) -> None:
        """Start a response with these settings. It runs concurrently with any commands that follow.

        Raises `ResponseUnderWay` or `ResourceExhausted` if too many responses are running, and
        `InvalidArgument` if there is no input to respond to.
        """
        in_conversation = not asked.out_of_band
        alike = [e for e in self._running.values() if e.in_conversation is in_conversation]
        ending = [e.task for e in alike if e.cancelled and e.task is not None]
        if in_conversation and (len(ending) < len(alike) or len(ending) >= MOST_ENDING):
            raise ResponseUnderWay
        if len(alike) >= MOST_OUT_OF_BAND:
            raise ResourceExhausted(
                f"{MOST_OUT_OF_BAND} out-of-band responses are already in progress"
            )
        running = RunningResponse(
            new_id("resp"),
            new_id("item"),
            settings,
            asked.metadata,
            in_conversation=in_conversation,
        )
        if in_conversation and ending:
            self._running[running.id] = running
            self._start(running, self._make(running, None, asked, ending))
            return
        order = self._order(asked, settings)
        self._running[running.id] = running
        await self._telling.tell(running.created())
        self._start(running, self._make(running, order, asked))

    def hears_from(self, number: int, rate_hz: int) -> float:
        """Return how many samples turn `number` must have before `hear` has to be called."""
        if self.answering:
            return math.inf
        heard = self._session.hears(number)
        if heard is None:
            return self._config.conversations.listen_after_s * rate_hz
        self._session.keep_listening()
        return heard + LISTEN_PIECE_S * rate_hz

    async def hear(
        self,
        so_far: TurnSoFar | None,
        cut: Callable[[int, int], bytes],
        settings: ConversationSettings,
    ) -> None:
        """Send a long turn to the stages while the user is speaking. The turn follows the
        conversation's items.

        `cut` returns samples of the turn. The only visible effect is that the answer starts sooner.
        """
        if so_far is None or self.answering:
            return
        heard = self._session.hears(so_far.number)
        if heard is None:
            least = self._config.conversations.listen_after_s * so_far.rate_hz
            if so_far.samples < least or not self._session.is_free:
                return
            order = _order_of(self._items, settings, more=True)
            self._session.begin_turn(so_far.number, so_far.rate_hz, order)
            heard = 0
        self._session.keep_listening()
        if so_far.samples - heard >= LISTEN_PIECE_S * so_far.rate_hz:
            await self._session.hear(cut(heard, so_far.samples))

    def forget_turn(self) -> None:
        """Abandon the turn that was sent. It may precede the turn for which an answer is
        requested.
        """
        if not any(each.in_conversation for each in self._running.values()):
            self._session.forget_turn()

    def interrupt(self) -> None:
        """Cancel the current answer to the conversation, if any, because the user has started to
        speak.
        """
        for running in self._running.values():
            if running.in_conversation:
                running.cancel("turn_detected")

    def cancel(self, response_id: str, reason: EndedBy) -> None:
        """Cancel a response. If the ID is empty, cancel the response that answers the conversation.
        Raises `NoResponse` if it doesn't exist.
        """
        for running in self._running.values():
            meant = running.id == response_id if response_id else running.in_conversation
            if meant and not running.cancelled:
                running.cancel(reason)
                return
        raise NoResponse

    def cut(self, item_id: str, heard_s: float) -> bool:
        """Shorten an item of a running response. Returns False if the item doesn't belong to such a
        response.
        """
        for running in self._running.values():
            if running.item_id == item_id:
                running.heard_s = heard_s
                return True
        return False

    def _start(self, running: RunningResponse, making: Coroutine[Any, Any, None]) -> None:
        running.task = asyncio.create_task(making)
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)

    def _order(self, asked: CreateResponse, settings: ConversationSettings) -> Order:
        items = self._items if asked.given is None else self._given(asked.given)
        return _order_of(items, settings)

    def _given(self, given: Iterable[Item | str]) -> tuple[Item, ...]:
        """Return the input of a response that doesn't answer the conversation. The limits are the
        same as for the conversation.
        """
        items = ItemList(
            max_items=self._config.limits.max_parts, max_bytes=self._config.limits.max_body_bytes
        )
        for number, each in enumerate(given):
            item = self._items.get(each) if isinstance(each, str) else each
            items.insert(replace(item, id=f"input_{number}"))
        return tuple(items)

    async def _make(
        self,
        running: RunningResponse,
        order: Order | None,
        asked: CreateResponse,
        ending: Iterable[asyncio.Task[None]] = (),
    ) -> None:
        """Run one response from its request until it ends.

        If it has to wait for the responses in `ending`, it has no order yet. Its order is created
        when the stages have released these responses and their items are complete.
        """

        async def refuse(entry: LogEntry, error: AntiphonError) -> None:
            entry.status = error.code.name
            if running.in_conversation:
                await self._session.settle()
            given_up = isinstance(error, GivenUp)
            await self._end(running, running.given_up() if given_up else running.failed(error))

        turn = self._session.asked() if running.in_conversation else None
        enclosing_span.set(turn)
        try:
            async with self._client.logged("response", refuse) as entry:
                entry.status = "CANCELLED"
                if ending:
                    await asyncio.wait(ending)
                    if running.cancelled:
                        await self._end(running, running.given_up())
                        return
                    order = self._order(asked, running.settings)
                    await self._telling.tell(running.created())
                assert order is not None, "without one it waits for another to end"
                if running.settings.reads_aloud:
                    running.reads(order.messages)
                with entry.admitted():
                    async with self._answer(entry.for_key(order), running) as segment:
                        await self._follow(segment, running, entry)
        except Cancelled:
            # The client has disconnected, so no one needs to be notified of the end of the
            # response.
            return
        finally:
            self._running.pop(running.id, None)
            if turn is not None:
                turn.end()

    def _answer(
        self, order: Order, running: RunningResponse
    ) -> AbstractAsyncContextManager[FailoverSegment]:
        """Return the segment that answers the order, either in the conversation's session or in a
        separate one.
        """
        if running.in_conversation:
            return self._session.turn(order, running.waits_at, running.answered_by)
        return self._calls.answer(order, running.waits_at)

    async def _follow(
        self, segment: FailoverSegment, running: RunningResponse, entry: LogEntry
    ) -> None:
        """Send the output of a segment until it ends."""
        running.answered_by(segment)
        if not running.may_call:
            await self._telling.tell(self._begin(running))
        async for event in segment:
            entry.note(event)
            if isinstance(event, SegmentFinished):
                ends = running.finished(event)
                entry.status = "OK"
                # If the client disconnects now, it has already received all of the output.
                with contextlib.suppress(Cancelled):
                    await self._end(running, ends)
            else:
                await self._tell_deltas(running, event)

    async def _tell_deltas(self, running: RunningResponse, event: Event) -> None:
        """Send new output, unless the response was cancelled."""
        await self._telling.tell_if(
            lambda: not running.cancelled, lambda: self._deltas(running, event)
        )

    def _deltas(self, running: RunningResponse, event: Event) -> list[ConversationEvent]:
        """Convert an event of the segment to conversation events."""
        told: list[ConversationEvent] = []
        if running.begins_with(event):
            told.append(self._begin(running))
        told += running.deltas(event)
        if isinstance(event, ToolCallsProduced):
            for piece in event.pieces:
                told += self._call_deltas(running, piece)
        return told

    def _call_deltas(
        self, running: RunningResponse, piece: ToolCallPiece
    ) -> Iterator[ConversationEvent]:
        """Convert a piece of a function call to conversation events."""
        if piece.begins:
            yield running.call_begun(self._insert(running, running.begin_call(piece)))
        yield from running.call_deltas(piece)
        if piece.call is not None and running.in_conversation:
            self._items.replace(running.latest_call)

    def _begin(self, running: RunningResponse) -> ConversationEvent:
        """Start the message of a response."""
        return running.begun(self._insert(running, running.item))

    def _insert(self, running: RunningResponse, item: Item) -> str:
        """Insert an item of a response into the conversation. Returns the ID of the
        previous item.
        """
        return (self._items.insert(item) or "") if running.in_conversation else ""

    async def _end(self, running: RunningResponse, ends: list[ConversationEvent]) -> None:
        """Send the final events of a response, after which it is no longer running.

        Its items become part of the conversation once they can no longer be shortened. If a
        function call is incomplete, it is removed, so that the client doesn't execute it.
        """

        def last() -> list[ConversationEvent]:
            self._running.pop(running.id, None)
            if running.in_conversation:
                self._items.replace(running.item_to_keep)
                unfinished = running.unfinished_call
                if unfinished is not None and self._items.discard(unfinished):
                    return [ItemRemoved(unfinished), *ends]
            return ends

        await self._telling.tell_if(lambda: True, last)
        # Another response may be waiting for this one.
        if running.in_conversation and not self.answering:
            self._answered(running.playing_s)

    @property
    def answering(self) -> bool:
        """Whether the conversation is being answered."""
        return bool(self._running) and any(each.in_conversation for each in self._running.values())


def _order_of(
    items: Iterable[Item], settings: ConversationSettings, *, more: bool = False
) -> Order:
    """Return the order for a response. Raises `InvalidArgument` if there is no input and `more` is
    false.
    """
    if settings.reads_aloud:
        return _reading_of(text_to_read(items), settings)
    messages, attachments = messages_of(items, settings.instructions)
    if not (messages or more):
        raise InvalidArgument(
            "response: the conversation is empty; create an item, or commit audio first",
            field="response",
        )
    if settings.spoken and not more and all(each.role != "user" for each in messages):
        # Models that speak continue from a user message. A response can consist of instructions.
        messages = (*messages, ConversationMessage("user", ()))
    tools, tool_choice = settings.offered
    return Order(
        recordings_alone=True,
        tools=tools,
        tool_choice=tool_choice,
        model=settings.model,
        messages=messages,
        attachments=attachments,
        outputs=settings.outputs,
        voice=settings.voice,
        sampling=settings.order_sampling,
        options=settings.order_options,
    )


def _reading_of(text: str, settings: ConversationSettings) -> Order:
    """Return an order to read text aloud verbatim."""
    return Order(
        model=settings.model,
        messages=(ConversationMessage("user", (TextPart(text),)),),
        outputs=settings.outputs,
        reads_aloud=True,
        voice=settings.voice,
        sampling=settings.order_sampling,
        options=settings.order_options,
        instruction=settings.instructions or None,
        field_names={"instruction": "instructions", "messages": "response"},
    )
