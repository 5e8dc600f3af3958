"""The `Converse` method. It admits a call, reads commands, sends events, and ends the call.

Every wait has a time limit, which is `body_timeout_s` for the first message, `send_timeout_s` for
each event that is sent, and `max_conversation_s` for the whole conversation. Clients that have
disconnected are detected by gRPC's keepalive pings, and clients that send commands too fast are
slowed down by its flow control. A client that closes its sending side still receives the events for
everything that it has requested.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    Unavailable,
)
from antiphon.v1 import converse_pb2
from antiphon.values.live_conversation import ResponseDone
from antiphon_gateway.conversations.conversations import AdmittedConversation
from antiphon_gateway.conversations.events import ConversationEvent
from antiphon_gateway.conversations.forced_end import ForcedEnd
from antiphon_gateway.conversations.saved import SavedConversation, with_delivered
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.conversation_endpoint import ConversationEndpoint
from antiphon_gateway.endpoints.grpc.converse.items import checked_name
from antiphon_gateway.endpoints.grpc.converse.reading import (
    AppendedSamples,
    read_command,
    read_delivered,
)
from antiphon_gateway.endpoints.grpc.converse.settings import name_settings, with_settings
from antiphon_gateway.endpoints.grpc.converse.writing import write_event
from antiphon_gateway.endpoints.grpc.grpc_message import read_message
from antiphon_gateway.endpoints.sending import ClientStalled, send_in_time
from antiphon_gateway.endpoints.stopping import until_stopped
from antiphon_gateway.keys.key_use import KeyUse
from antiphon_gateway.threads import SizedThreads

log = logging.getLogger("gateway.converse")
_THREADS = SizedThreads("commands")

LARGE_BYTES = 256 << 10
"""Messages that are larger than this many bytes are parsed on a separate thread."""

Context = grpc.aio.ServicerContext[Any, Any]


class ConverseEndpoint:
    """Serves conversations."""

    def __init__(self, endpoint: ConversationEndpoint) -> None:
        self._endpoint = endpoint

    async def serve(self, context: Context, key: KeyUse, forced_end: ForcedEnd) -> None:
        """Serve a call. Raises an error that becomes the status of the call.

        The caller sends the status after this method has returned, because sending it may involve
        waiting for the client. By that time, the conversation's resources have been released.
        """
        try:
            await self._serve(context, key, forced_end)
        except AntiphonError as error:
            name_settings(error)
            raise

    async def _serve(self, context: Context, key: KeyUse, forced_end: ForcedEnd) -> None:
        first = await self._first(context)
        with self._endpoint.conversations.admit(first.open.model, key.name, forced_end) as admitted:
            resumed = None
            if first.open.HasField("resumed"):
                resumed = self._resumed(first.open.resumed, key, admitted.settings)
                settings = resumed.settings
            else:
                # Turns are detected only if the client asks for it.
                manual = replace(admitted.settings, turns=None)
                settings = with_settings(manual, first.open.settings)
            resumable = first.open.resumable
            del first
            served = _Served(
                self._endpoint, context, key, admitted, settings, resumed, resumable=resumable
            )
            del resumed
            try:
                await served.run()
            except Cancelled:
                # Usually, the client has disconnected and doesn't receive this. Otherwise, the call
                # must not end as it does when the conversation is complete.
                raise Unavailable(
                    "the conversation has ended, because an event could not be sent"
                ) from None

    def _resumed(
        self,
        asked: converse_pb2.ResumedConversation,
        key: KeyUse,
        first: ConversationSettings,
    ) -> SavedConversation:
        """Return the conversation in a token, up to the point that the client has received."""
        delivered = read_delivered(asked.delivered)
        try:
            saved = self._endpoint.conversations.resume(asked.token, key.name, first)
        except (InvalidArgument, FailedPrecondition) as error:
            raise type(error)(f"open.resumed.{error.message}", field="open.resumed.token") from None
        return with_delivered(saved, delivered)

    async def _first(self, context: Context) -> converse_pb2.ConverseRequest:
        """Read the first message. Raises `InvalidArgument` if it is invalid, and `DeadlineExceeded`
        if it doesn't arrive in time.
        """
        most_s = self._endpoint.config.limits.body_timeout_s
        try:
            async with asyncio.timeout(most_s):
                data = await context.read()
        except TimeoutError:
            raise DeadlineExceeded(f"no message was received for {most_s:g} s") from None
        first = None if data is grpc.aio.EOF else await _read(data, self._endpoint.config)
        if first is None or first.WhichOneof("command") != "open":
            raise InvalidArgument("open: must be the first message", field="open")
        return first


class _Served:
    """A call that was admitted."""

    def __init__(
        self,
        endpoint: ConversationEndpoint,
        context: Context,
        key: KeyUse,
        admitted: AdmittedConversation,
        settings: ConversationSettings,
        resumed: SavedConversation | None,
        *,
        resumable: bool,
    ) -> None:
        self._context = context
        self._config = endpoint.config
        self._watch = endpoint.watch()
        self._appended = AppendedSamples()
        self._limit = asyncio.timeout(endpoint.config.conversations.max_conversation_s)
        self._stalled: ClientStalled | None = None
        self._task: asyncio.Task[None] | None = None
        self._live = endpoint.begin(
            admitted, settings, self._send, key, resumable=resumable, resumed=resumed
        )

    async def run(self) -> None:
        """Serve the call until the client has no more commands and has received all events.

        Raises `Cancelled` if the client has disconnected, `ClientStalled` if it has stopped
        reading, `DeadlineExceeded` if the conversation has reached its maximum duration,
        `Unavailable` if the gateway shuts down before everything is answered, and the errors of
        `until_stopped`.
        """
        self._task = asyncio.current_task()
        try:
            async with self._limit, self._live, until_stopped(self._live):
                while (data := await self._context.read()) is not grpc.aio.EOF:
                    if (covering := self._live.command()) is None:
                        await self._take(data)
                    else:
                        async with covering:
                            await self._take(data)
                    del data
                await self._live.settled()
                self._live.check_complete()
        except (Cancelled, TimeoutError) as end:
            if self._stalled is not None:
                raise self._stalled from None
            if isinstance(end, Cancelled):
                raise
            raise DeadlineExceeded(
                "the conversation has reached the maximum duration of "
                f"{self._config.conversations.max_conversation_s:g} s "
                "(gateway.conversations.max_conversation_s); open a new one"
            ) from None

    async def _take(self, data: bytes) -> None:
        """Execute one command. If there is an error, it is sent to the client as an event, and the
        conversation continues.
        """
        reference = ""
        try:
            asked = await _read(data, self._config)
            del data
            reference = checked_name(asked.reference, "reference")
            holds = self._live.settings
            size = asked.ByteSize()
            command = (
                await _THREADS.run(size, read_command, asked, holds, self._appended)
                if size > LARGE_BYTES
                else read_command(asked, holds, self._appended)
            )
            del asked
            await self._live.do(command)
        except (Cancelled, ClientStalled):
            raise
        except AntiphonError as error:
            name_settings(error)
            await self._live.refuse(error, reference)
        except Exception:
            log.exception("a conversation command failed")
            mistake = Internal("internal error; see the gateway's log")
            await self._live.refuse(mistake, reference)

    async def _send(self, events: Sequence[ConversationEvent]) -> None:
        for event in events:
            self._watch.note(event)
            if isinstance(event, ResponseDone) and event.response.error is not None:
                name_settings(event.response.error)
            message = write_event(event, self._config.conversations.max_retrieved_bytes)
            try:
                await send_in_time(
                    self._context.write(message), self._config.connections.send_timeout_s
                )
            except ClientStalled as stalled:
                self._stalled = self._stalled or stalled
                if asyncio.current_task() is not self._task:
                    self._limit.reschedule(asyncio.get_running_loop().time())
                raise Cancelled("the client isn't reading") from None
            except grpc.aio.BaseError:
                # gRPC raises this error if the call is over.
                raise Cancelled("the client has disconnected") from None


async def _read(data: bytes, config: GatewayConfig) -> converse_pb2.ConverseRequest:
    return await read_message(
        converse_pb2.ConverseRequest, data, config.limits.max_body_values, LARGE_BYTES
    )
