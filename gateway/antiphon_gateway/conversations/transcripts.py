"""Uses the model to transcribe the user's speech. This runs concurrently with the answers, in
separate sessions.

Recordings are transcribed in order, one at a time, so each conversation uses at most one call and
one slot for this. Answers never wait for transcripts. A transcript counts as one of an API key's
requests per minute, but not as one of its concurrent requests. Otherwise, with `concurrency: 1`,
either the transcript or the answer would be refused. The number of concurrent transcripts is
limited anyway, because the number of conversations is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, Cancelled, NotFound, ResourceExhausted
from antiphon.values.live_conversation import (
    Item,
    TranscriptDelta,
    TranscriptDone,
    TranscriptLost,
    TranscriptOptions,
)
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.conversations.client import ConversationClient, LogEntry
from antiphon_gateway.conversations.event_sender import EventSender
from antiphon_gateway.conversations.items import HeardPart, ItemList
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.orders.order import Order
from antiphon_gateway.orders.transcribing import transcription_order
from antiphon_gateway.sessions.events import SegmentFinished, TextProduced

MOST_WAITING = 16
"""The maximum number of a conversation's recordings that can be waiting to be transcribed."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A recording that is waiting to be transcribed. It is referenced by its position, so that the
    item can be freed if it is deleted.
    """

    item_id: str
    index: int
    wish: TranscriptOptions


class Transcripts:
    """The transcripts of a conversation. Call `close` when the conversation ends."""

    def __init__(
        self,
        calls: Calls,
        config: GatewayConfig,
        items: ItemList,
        telling: EventSender,
        client: ConversationClient,
    ) -> None:
        self._calls = calls
        self._instruction = config.media.transcribe_instruction
        self._items = items
        self._telling = telling
        self._client = client
        self._waiting: deque[_Waiting] = deque()
        self._work: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Cancel all transcripts, whether they are running or waiting."""
        self._waiting.clear()
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until the events of all requested transcripts have been sent."""
        while self._work is not None and not self._work.done():
            await asyncio.wait([self._work])

    async def begin(self, item: Item, wish: TranscriptOptions) -> None:
        """Queue the recordings of an item for transcription."""
        for index, content in enumerate(item.parts):
            if not isinstance(content, HeardPart):
                continue
            if len(self._waiting) >= MOST_WAITING:
                error = ResourceExhausted(
                    f"{MOST_WAITING} recordings are already waiting to be transcribed"
                )
                await self._telling.tell(TranscriptLost(item.id, error, index))
                continue
            self._waiting.append(_Waiting(item.id, index, wish))
        if self._waiting and (self._work is None or self._work.done()):
            self._work = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._write(self._waiting.popleft())
        except Cancelled:
            # The client has disconnected.
            return

    async def _write(self, wanted: _Waiting) -> None:
        async def refuse(entry: LogEntry, error: AntiphonError) -> None:
            entry.status = error.code.name
            await self._telling.tell(TranscriptLost(wanted.item_id, error, wanted.index))

        async with self._client.logged("transcript", refuse) as entry:
            entry.status = "CANCELLED"
            entry.counted()
            text: list[str] = []
            async with self._calls.answer(entry.for_key(self._order(wanted))) as segment:
                async for event in segment:
                    entry.note(event)
                    match event:
                        case TextProduced(text=piece) if piece:
                            text.append(piece)
                            told = TranscriptDelta(wanted.item_id, piece, wanted.index)
                            await self._telling.tell(told)
                        case SegmentFinished(usage=usage):
                            said = "".join(text)
                            entry.status = "OK"
                            self._keep(wanted, said)
                            end = TranscriptDone(wanted.item_id, said, usage, wanted.index)
                            await self._telling.tell(end)

    def _order(self, wanted: _Waiting) -> Order:
        return transcription_order(
            Recording(f"items.{wanted.item_id}", self._recording(wanted).recording),
            self._instruction,
            language=wanted.wish.language,
            prompt=wanted.wish.prompt,
            model_options=self._calls.fleet.accepted().options,
        )

    def _recording(self, wanted: _Waiting) -> HeardPart:
        """Return the recording. Raises `NotFound` if it was deleted."""
        for content in self._items.get(wanted.item_id).parts[wanted.index :][:1]:
            if isinstance(content, HeardPart):
                return content
        raise NotFound(
            f"the item {wanted.item_id!r} was replaced, and the new item has no such recording"
        )

    def _keep(self, wanted: _Waiting, said: str) -> None:
        """If the item still exists, add the text to it."""
        try:
            recording = self._recording(wanted)
        except NotFound:
            return
        item = self._items.get(wanted.item_id)
        parts = list(item.parts)
        parts[wanted.index] = replace(recording, transcript=said)
        self._items.replace(replace(item, parts=tuple(parts)))
