"""A realtime connection. It converts client events to commands, and conversation events to server
events.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence

from antiphon.errors import AntiphonError, Cancelled, Internal
from antiphon.values.live_conversation import AppendAudio, ChangeSettings
from antiphon_gateway.conversations.conversations import AdmittedConversation
from antiphon_gateway.conversations.events import ConversationEvent
from antiphon_gateway.conversations.saved import SavedConversation
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.conversation_endpoint import ConversationEndpoint
from antiphon_gateway.endpoints.http.fields import IgnoredFields
from antiphon_gateway.endpoints.http.json_body import check_values, count_values
from antiphon_gateway.endpoints.realtime.client_commands import AppendedBytes, read_command
from antiphon_gateway.endpoints.realtime.client_events import (
    AudioAppend,
    ClientEvent,
    event_id_of,
    plain_event,
    read_event,
)
from antiphon_gateway.endpoints.realtime.incoming import IncomingMessages
from antiphon_gateway.endpoints.realtime.own_settings import SESSION, named_within
from antiphon_gateway.endpoints.realtime.server_events import Json, ServerEvents
from antiphon_gateway.endpoints.stopping import until_stopped
from antiphon_gateway.keys.key_use import KeyUse
from antiphon_gateway.threads import SizedThreads

log = logging.getLogger("gateway.realtime")
_THREADS = SizedThreads("events")

LARGE_CHARS = 256 << 10
"""Events that have more characters than this are parsed on a separate thread."""

BURST_EVENTS = 8
BURST_CHARS = 16 << 10
"""Other tasks get a turn after `BURST_EVENTS` events from a connection and after every event that
has more than `BURST_CHARS` characters. Events that append audio can share a command up to the same
limits. An event with 80 ms of audio has 5,120 characters of base64.
"""

SendJson = Callable[[Json], Awaitable[None]]
"""A function that sends an event to the client within a time limit. It raises `Cancelled` if the
client has disconnected.
"""


class RealtimeCall:
    """A realtime connection for one conversation."""

    def __init__(
        self,
        endpoint: ConversationEndpoint,
        key: KeyUse,
        admitted: AdmittedConversation,
        settings: ConversationSettings,
        send: SendJson,
        report_ignored: Callable[[Collection[str]], None],
        *,
        resumable: bool = False,
        resumed: SavedConversation | None = None,
    ) -> None:
        self._most_values = endpoint.config.limits.max_body_values
        self._most_plain = min(self._most_values, LARGE_CHARS)
        self._most_joined = min(self._most_plain, BURST_CHARS)
        self._unknown_fields = endpoint.config.unknown_fields
        self._report_ignored = report_ignored
        self._send_json = send
        self._watch = endpoint.watch()
        self._events = ServerEvents(settings, endpoint.config.conversations.max_retrieved_bytes)
        self._appended = AppendedBytes()
        self._numbers = itertools.count()
        self._call_id = uuid.uuid4().hex[:12]
        self._conversation = endpoint.begin(
            admitted, settings, self._send, key, resumable=resumable, resumed=resumed
        )

    async def run(self, incoming: IncomingMessages) -> None:
        """Serve the connection until the client disconnects. Then cancel all responses that are
        still running.

        The errors of `until_stopped` are first sent to the client and then raised.
        """
        async with self._conversation:
            try:
                async with until_stopped(self._conversation):
                    taken = 0
                    while (data := await incoming.read()) is not None:
                        if (covering := self._conversation.command()) is None:
                            taken += await self._take(data, incoming)
                        else:
                            async with covering:
                                taken += await self._take(data, incoming)
                        # Thousands of events can arrive at once, and processing an event doesn't
                        # always yield to the event loop.
                        if taken >= BURST_EVENTS or len(data) > BURST_CHARS:
                            taken = 0
                            await asyncio.sleep(0)
            except Cancelled:
                raise
            except AntiphonError as stopped:
                await self._conversation.refuse(stopped, "")
                raise

    async def _take(self, data: str, incoming: IncomingMessages) -> int:
        """Handle an event. If there is an error, it is sent to the client, and the call continues.

        If the event appends audio, this includes the events after it whose audio can be joined with
        it. Returns the number of events.
        """
        size = len(data)
        event = plain_event(data) if size <= self._most_plain else None
        if event is None:
            event = await self._read(data)
            if event is None:
                return 1
        del data
        events = [event]
        try:
            settings = self._conversation.settings
            command = (
                await _THREADS.run(size, read_command, event, settings, self._appended)
                if size > LARGE_CHARS
                else read_command(event, settings, self._appended)
            )
            if isinstance(command, ChangeSettings):
                with named_within(SESSION):
                    await self._conversation.do(command)
            elif isinstance(command, AppendAudio):
                if incoming.arrived():
                    command = await self._joined(command, events, incoming)
                await self._conversation.do(command)
            elif command is not None:
                await self._conversation.do(command)
        except Cancelled:
            raise
        except AntiphonError as error:
            await self._refuse(error, events)
        except Exception:
            log.exception("a realtime event failed")
            await self._refuse(Internal("internal error; see the gateway's log"), events)
        return len(events)

    async def _joined(
        self, audio: AppendAudio, events: list[ClientEvent], incoming: IncomingMessages
    ) -> AppendAudio:
        """Return the audio of an event, together with the audio of the events that have arrived
        after it. They are added to `events`.

        A command for all of this audio costs as much as a command for a part of it. Up to
        `BURST_EVENTS` events are joined, provided that this makes no difference to the client.
        """
        pieces, rate_hz = [audio.pcm16], audio.rate_hz
        room = self._conversation.joined_bytes(rate_hz) - len(audio.pcm16)
        sent, appended = self._conversation.settings.input_format, self._appended
        while len(events) < BURST_EVENTS and incoming.arrived():
            if (data := await incoming.read()) is None:
                break
            # Four characters of base64 contain three bytes. A byte of G.711 is a sample of two.
            room -= 2 * len(data)
            event = plain_event(data) if room >= 0 and len(data) <= self._most_joined else None
            if not isinstance(event, AudioAppend):
                incoming.put_back(data)
                break
            try:
                pieces.append(appended.take(event.audio, sent))
            except AntiphonError:
                # The error is raised again when the event is handled on its own.
                incoming.put_back(data)
                break
            events.append(event)
        return audio if len(pieces) == 1 else AppendAudio(b"".join(pieces), rate_hz)

    async def _refuse(self, error: AntiphonError, events: Sequence[ClientEvent]) -> None:
        for event in events:
            await self._conversation.refuse(error, event.event_id or "")

    async def _read(self, data: str) -> ClientEvent | None:
        """Parse an event, which may be large or invalid or may have fields that are ignored. If it
        is invalid, the error is sent to the client, and None is returned.
        """
        ignored = IgnoredFields(self._unknown_fields)
        try:
            if len(data) > self._most_values:
                check_values(count_values(data.encode()), self._most_values, "event")
            if len(data) > LARGE_CHARS:
                return await _THREADS.run(len(data), read_event, data, ignored)
            return read_event(data, ignored)
        except AntiphonError as error:
            await self._conversation.refuse(error, event_id_of(data) or "")
            return None
        finally:
            self._report_ignored(ignored)

    async def _send(self, events: Sequence[ConversationEvent]) -> None:
        for event in events:
            self._watch.note(event)
            for told in await self._events.of(event):
                event_id = f"event_{self._call_id}_{next(self._numbers)}"
                await self._send_json({"event_id": event_id, **told})
