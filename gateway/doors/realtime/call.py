"""One realtime connection: its conversation, its audio buffer, and the response that is being made.

Client events are handled one by one, in order. A response runs beside them and sends through the
same lock, under which it is seen whether it was cancelled: so no delta of it follows the cancel.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import assert_never

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    Internal,
    InvalidArgument,
    ResourceExhausted,
)
from gateway.calls.calls import Calls
from gateway.calls.events import Event, SegmentFinished
from gateway.calls.order import Order
from gateway.calls.segment import CallSegment
from gateway.conversations.conversation import ConversationSession
from gateway.conversations.items import (
    ConversationItem,
    ItemList,
    RecordedContent,
    SpokenContent,
    item_as_heard,
)
from gateway.doors.access_log import AccessLog, Entry
from gateway.doors.ending import request
from gateway.doors.http.json_body import check_values, count_values
from gateway.doors.realtime import client_events as client
from gateway.doors.realtime.client_events import ClientEvent, event_id_of, read_event
from gateway.doors.realtime.errors import RealtimeError, error_event
from gateway.doors.realtime.item_json import item_json, pcm16_from_base64, read_item
from gateway.doors.realtime.response_events import ResponseEvents, ServerEvent
from gateway.doors.realtime.running import RunningResponse, order_of
from gateway.doors.realtime.settings import RATE_HZ, RealtimeSettings
from gateway.doors.sending import ClientStalled
from gateway.media.audio_out import SAMPLE_BYTES

log = logging.getLogger("gateway.realtime")

MOST_OUT_OF_BAND = 4
"""Responses out of band at a time."""
LARGE_CHARS = 256 << 10
"""An event of more is parsed on a thread."""

SendEvents = Callable[[Iterable[ServerEvent]], Awaitable[None]]


class RealtimeCall:
    """See the head of this file. `send` hands events to the client, in time."""

    def __init__(
        self,
        calls: Calls,
        config: GatewayConfig,
        access_log: AccessLog,
        settings: RealtimeSettings,
        send: SendEvents,
    ) -> None:
        self._calls = calls
        self._config = config
        self._access_log = access_log
        self._settings = settings
        self._send_now = send
        self._sending = asyncio.Lock()
        self._session = ConversationSession(calls)
        self._items = ItemList(max_items=config.max_parts, max_bytes=config.max_body_bytes)
        self._audio = bytearray()
        self._session_id = f"sess_{uuid.uuid4().hex}"
        self._conversation_id = f"conv_{uuid.uuid4().hex}"
        self._event_numbers = itertools.count()
        self._running: dict[str, RunningResponse] = {}

    async def run(self, incoming: AsyncIterator[str]) -> None:
        """Serve until the client leaves; what still runs is given up then."""
        await self._send([self._told_session("session.created")])
        try:
            async for data in incoming:
                await self._take(data)
        finally:
            tasks = [each.task for each in self._running.values() if each.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._session.close()

    async def _take(self, data: str) -> None:
        """Handle one event; what is wrong with it is told, and the call goes on."""
        try:
            most = self._config.max_body_values
            if len(data) > most:
                check_values(count_values(data.encode()), most, "event")
            large = len(data) > LARGE_CHARS
            event = await asyncio.to_thread(read_event, data) if large else read_event(data)
        except AntiphonError as error:
            await self._send([error_event(error, event_id_of(data))])
            return
        del data
        try:
            await self._handle(event)
        except (Cancelled, ClientStalled):
            raise
        except AntiphonError as error:
            await self._send([error_event(error, event.event_id)])
        except Exception:
            log.exception("a realtime event broke")
            mistake = Internal("the gateway made a mistake; its log has more")
            await self._send([error_event(mistake, event.event_id)])

    async def _handle(self, event: ClientEvent) -> None:
        match event:
            case client.SessionUpdate(session=asked):
                self._settings = self._settings.updated(asked)
                await self._send([self._told_session("session.updated")])
            case client.AudioAppend(audio=audio):
                await self._append(audio)
            case client.AudioCommit():
                await self._commit()
            case client.AudioClear():
                self._audio.clear()
                await self._send([{"type": "input_audio_buffer.cleared"}])
            case client.ItemCreate(item=given, previous_item_id=after):
                item = await asyncio.to_thread(read_item, given, _new_id("item"))
                await self._add(item, after)
            case client.ItemRetrieve(item_id=item_id):
                item = self._items.get(item_id)
                told = await asyncio.to_thread(item_json, item, audio=True)
                await self._send([{"type": "conversation.item.retrieved", "item": told}])
            case client.ItemDelete(item_id=item_id):
                self._items.remove(item_id)
                await self._send([{"type": "conversation.item.deleted", "item_id": item_id}])
            case client.ItemTruncate():
                await self._truncate(event)
            case client.ResponseCreate(response=asked):
                await self._respond(asked or client.ResponseSettings())
            case client.ResponseCancel(response_id=response_id):
                self._cancel(response_id)
            case client.OutputClear():
                pass
            case _:
                assert_never(event)

    # -- items -------------------------------------------------------------------------

    async def _append(self, audio: str) -> None:
        decode = pcm16_from_base64
        large = len(audio) > LARGE_CHARS
        pcm16 = await asyncio.to_thread(decode, audio, "audio") if large else decode(audio, "audio")
        most_s = self._config.max_recording_s
        if len(self._audio) + len(pcm16) > most_s * RATE_HZ * SAMPLE_BYTES:
            raise InvalidArgument(
                f"audio: the buffer would hold more than {most_s:g} seconds, the most that a "
                "recording may have; commit or clear it",
                field="audio",
            )
        self._audio += pcm16

    async def _commit(self) -> None:
        if not self._audio:
            raise RealtimeError(
                "the input audio buffer is empty; append audio before you commit",
                "input_audio_buffer_commit_empty",
            )
        recording = RecordedContent(bytes(self._audio), RATE_HZ)
        item = ConversationItem(_new_id("item"), "user", (recording,))
        before = self._items.insert(item)
        self._audio.clear()
        committed = {
            "type": "input_audio_buffer.committed",
            "item_id": item.id,
            "previous_item_id": before,
        }
        await self._send([committed, *_added(item, before)])

    async def _add(self, item: ConversationItem, after: str | None) -> None:
        before = self._items.insert(item, after)
        await self._send(_added(item, before))

    async def _truncate(self, event: client.ItemTruncate) -> None:
        item = self._items.get(event.item_id)
        if event.content_index or not item.contents:
            raise InvalidArgument("content_index: the item has one part, 0", field="content_index")
        content = item.contents[0]
        if not isinstance(content, SpokenContent) or item.role != "assistant":
            raise InvalidArgument("item_id: the item is not spoken", field="item_id")
        heard_s = event.audio_end_ms / 1000
        running = [each for each in self._running.values() if each.events.item.id == item.id]
        if running:
            # It is not in the list yet as it will be at its end.
            running[0].heard_s = heard_s
        else:
            self._items.replace(item_as_heard(item, heard_s))
        truncated = {
            "type": "conversation.item.truncated",
            "item_id": item.id,
            "content_index": 0,
            "audio_end_ms": event.audio_end_ms,
        }
        await self._send([truncated])

    # -- responses ---------------------------------------------------------------------

    async def _respond(self, asked: client.ResponseSettings) -> None:
        """Begin a response; it runs beside what the client says next."""
        in_conversation = asked.conversation != "none"
        alike = [e for e in self._running.values() if e.in_conversation is in_conversation]
        if in_conversation and alike:
            raise RealtimeError(
                "a response is being made; wait for response.done, or cancel it",
                "conversation_already_has_active_response",
            )
        if len(alike) >= MOST_OUT_OF_BAND:
            raise ResourceExhausted(f"{MOST_OUT_OF_BAND} responses out of band are being made")
        if len(asked.metadata or {}) > client.MOST_METADATA:
            raise InvalidArgument(
                f"response.metadata: at most {client.MOST_METADATA} entries",
                field="response.metadata",
            )
        settings = self._settings.for_response(asked)
        items = tuple(self._items)
        if asked.input is not None:
            items = await asyncio.to_thread(self._given_items, asked.input)
        order = await asyncio.to_thread(order_of, items, settings)
        events = ResponseEvents(
            _new_id("resp"),
            _new_id("item"),
            settings,
            self._conversation_id if in_conversation else "",
            asked.metadata,
        )
        running = RunningResponse(events, in_conversation)
        self._running[events.id] = running
        await self._send([events.created()])
        running.task = asyncio.create_task(self._make(running, [order]))

    def _given_items(self, given: Iterable[client.ItemGiven]) -> tuple[ConversationItem, ...]:
        """The input of a response that does not answer the conversation; as bounded as that."""
        items = ItemList(max_items=self._config.max_parts, max_bytes=self._config.max_body_bytes)
        for number, each in enumerate(given):
            item = (
                self._items.get(each.id or "")
                if each.type == "item_reference"
                else read_item(each, "")
            )
            items.insert(replace(item, id=f"input_{number}"))
        return tuple(items)

    def _cancel(self, response_id: str | None) -> None:
        for running in self._running.values():
            named = running.events.id == response_id
            if not running.cancelled and (
                named or (response_id is None and running.in_conversation)
            ):
                running.cancel()
                return
        raise RealtimeError("no response is being made", "response_cancel_not_active")

    async def _make(self, running: RunningResponse, orders: list[Order]) -> None:
        """One response from the asking to its `response.done`; the order is taken out at once."""
        events = running.events

        async def refuse(entry: Entry, error: AntiphonError) -> None:
            entry.status = error.code.name
            if running.in_conversation:
                await self._session.settle()
            self._keep(running)
            await self._end(running, events.failed(error))

        try:
            async with request(self._access_log, "realtime", "response", refuse) as entry:
                entry.status = "CANCELLED"
                if running.in_conversation:
                    with self._calls.admit():
                        segment = await self._session.ask(orders.pop())
                        await self._tell(segment, running, entry)
                else:
                    async with self._calls.answer(orders.pop()) as segment:
                        await self._tell(segment, running, entry)
        except (Cancelled, ClientStalled):
            # Nobody is there any more to be told how the response ended.
            return
        finally:
            self._running.pop(events.id, None)

    async def _tell(self, segment: CallSegment, running: RunningResponse, entry: Entry) -> None:
        events = running.events
        running.segment = segment
        if running.cancelled:
            segment.cancel()
        before = self._items.insert(events.item) if running.in_conversation else None
        await self._send(events.begun(before))
        async for event in segment:
            entry.note(event)
            if isinstance(event, SegmentFinished):
                ends = events.finished(event.finish_reason, event.usage)
                entry.status = "OK"
                self._keep(running)
                await self._end(running, ends)
            else:
                await self._send_deltas(running, event)

    def _keep(self, running: RunningResponse) -> None:
        """Let the conversation have what has been said."""
        if running.in_conversation:
            item, heard_s = running.events.item, running.heard_s
            self._items.replace(item if heard_s is None else item_as_heard(item, heard_s))

    # -- sending -----------------------------------------------------------------------

    async def _send(self, events: Iterable[ServerEvent]) -> None:
        async with self._sending:
            await self._send_now(map(self._numbered, events))

    async def _send_deltas(self, running: RunningResponse, event: Event) -> None:
        """Send what has been made of a response unless it was cancelled meanwhile."""
        async with self._sending:
            if not running.cancelled:
                await self._send_now(map(self._numbered, running.events.of(event)))

    async def _end(self, running: RunningResponse, events: list[ServerEvent]) -> None:
        """Send the last events of a response, which is then no longer being made."""
        async with self._sending:
            self._running.pop(running.events.id, None)
            await self._send_now(map(self._numbered, events))

    def _numbered(self, event: ServerEvent) -> ServerEvent:
        return {"event_id": f"event_{self._session_id[5:17]}_{next(self._event_numbers)}", **event}

    def _told_session(self, kind: str) -> ServerEvent:
        return {"type": kind, "session": self._settings.session(self._session_id)}


def _added(item: ConversationItem, before: str | None) -> list[ServerEvent]:
    told = item_json(item)
    return [
        {"type": "conversation.item.added", "previous_item_id": before, "item": told},
        {"type": "conversation.item.done", "previous_item_id": before, "item": told},
    ]


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
