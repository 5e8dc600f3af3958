"""A conversation itself, whose client takes events when the test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace

import pytest

from antiphon.errors import AntiphonError, Cancelled
from antiphon.values.live_conversation import (
    CreateItem,
    CreateResponse,
    Item,
    ItemFetched,
    ResponseDone,
    ResponseStarted,
    ResponseTextDelta,
    RetrieveItem,
    SpokenPart,
    TruncateItem,
)
from antiphon.values.segment import FinishReason
from antiphon_gateway.conversations.client import LogEntry, Made, RefuseResponse
from antiphon_gateway.conversations.conversations import Conversations
from antiphon_gateway.conversations.events import ConversationEvent, ResponseSamples
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import Event, SegmentFinished
from antiphon_testkit.gateway_settings import gateway_config
from tests.contract.fake_stages import CODE2WAV, THINKER, Session, think
from tests.contract.served_gateway import MODEL, ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Line:
    """What is logged of a response; `made` is set when the stages have finished it."""

    def __init__(self) -> None:
        self.status = ""
        self.made = asyncio.Event()

    def note(self, event: Event) -> None:
        if isinstance(event, SegmentFinished):
            self.made.set()

    def for_key(self, order: Order) -> Order:
        return order

    @contextmanager
    def admitted(self) -> Iterator[None]:
        yield


class Client:
    """Takes events by `send`, and has responses logged by `line`."""

    def __init__(
        self,
        send: Callable[[Sequence[ConversationEvent]], Awaitable[None]],
        line: Callable[[RefuseResponse], AbstractAsyncContextManager[LogEntry]],
    ) -> None:
        self._send = send
        self._line = line

    async def send(self, events: Sequence[ConversationEvent]) -> None:
        await self._send(events)

    def logged(self, made: Made, refuse: RefuseResponse) -> AbstractAsyncContextManager[LogEntry]:
        return self._line(refuse)


async def test_truncation_that_meets_the_end_of_an_answer_is_kept(served: ServedGateway) -> None:
    """It comes when the answer is whole and its last events wait for their turn."""
    over, stuck, taken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    lines: list[Line] = []
    written_ids: set[str] = set()
    told: asyncio.Queue[ConversationEvent] = asyncio.Queue()

    async def say(session: Session) -> None:
        if len(served.fakes[THINKER].sessions) > 1:
            await think(session)
            return
        await session.opened()
        await session.text("Once upon", FinishReason.STOP)
        await session.report()

    async def speak(session: Session) -> None:
        await session.opened()
        await session.audio(10, 0, FinishReason.STOP)
        await over.wait()
        await session.report()

    async def send(events: Sequence[ConversationEvent]) -> None:
        for event in events:
            told.put_nowait(event)
            if isinstance(event, ResponseStarted) and event.response.out_of_band:
                written_ids.add(event.response.id)
            if isinstance(event, ResponseTextDelta) and event.response_id in written_ids:
                stuck.set()
                await taken.wait()

    async def until(*kinds: type[ConversationEvent]) -> ConversationEvent:
        wanted = set(kinds)
        while True:
            event = await told.get()
            wanted.discard(type(event))
            if not wanted:
                return event

    @asynccontextmanager
    async def logged(refuse: RefuseResponse) -> AsyncIterator[Line]:
        lines.append(Line())
        yield lines[-1]

    served.fakes[THINKER].script, served.fakes[CODE2WAV].script = say, speak
    conversations = Conversations(served.gateway.calls, gateway_config())
    question = Item("user", ("Tell me a story",))
    with conversations.admit(MODEL) as admitted:
        async with conversations.begin(admitted, admitted.settings, Client(send, logged)) as live:
            await live.do(CreateItem(question))
            await live.do(CreateResponse())
            delta = await until(ResponseTextDelta, ResponseSamples)
            assert isinstance(delta, ResponseTextDelta | ResponseSamples)
            written = CreateResponse(
                replace(admitted.settings, spoken=False), out_of_band=True, given=(question,)
            )
            await live.do(written)
            await stuck.wait()
            over.set()
            await lines[0].made.wait()
            cut = asyncio.create_task(live.do(TruncateItem(delta.item_id, 0.4)))
            # It is carried out, and waits to tell so.
            await asyncio.sleep(0)
            taken.set()
            await cut
            await until(ResponseDone)
            await live.do(RetrieveItem(delta.item_id))
            retrieved = await until(ItemFetched)
            assert isinstance(retrieved, ItemFetched)
            assert retrieved.item.parts == (SpokenPart("Once", 0.4),)


async def test_who_leaves_with_the_end_of_an_answer_has_had_all_of_it(
    served: ServedGateway,
) -> None:
    """It is no error of the answer that its last event finds nobody."""
    written = asyncio.Event()
    line, errors = Line(), list[AntiphonError]()

    async def send(events: Sequence[ConversationEvent]) -> None:
        if any(isinstance(event, ResponseDone) for event in events):
            raise Cancelled("the client has disconnected")

    @asynccontextmanager
    async def logged(refuse: RefuseResponse) -> AsyncIterator[Line]:
        try:
            yield line
        except AntiphonError as error:
            errors.append(error)
        finally:
            written.set()

    conversations = Conversations(served.gateway.calls, gateway_config())
    question = Item("user", ("Tell me a story",))
    with conversations.admit(MODEL) as admitted:
        async with conversations.begin(admitted, admitted.settings, Client(send, logged)) as live:
            await live.do(CreateItem(question))
            await live.do(CreateResponse())
            await written.wait()
    assert (line.status, errors) == ("OK", [])
