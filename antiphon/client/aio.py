"""The asyncio client: the same methods as the blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

import grpc

from antiphon.client import checks
from antiphon.client.channel import CHANNEL_OPTIONS, check_open, closed_by_caller
from antiphon.client.events import Event, ServerInfo, server_info_from_proto
from antiphon.client.reply import EventReader, Reply, join_events
from antiphon.client.request import (
    DEFAULT_TIMEOUT_S,
    GenerateOptions,
    Message,
    generate_request,
)
from antiphon.errors import AntiphonError
from antiphon.v1 import speech_pb2
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import speech_stub

if TYPE_CHECKING:
    GenerateCall = grpc.aio.UnaryStreamCall[speech_pb2.GenerateRequest, speech_pb2.GenerateResponse]


class AsyncGeneration(AsyncIterator[Event]):
    """An answer on its way: an async iterator of `TextDelta`, `AudioDelta`, `Finished`.

    >>> async with client.generate("Tell me a story.") as generation:
    ...     async for event in generation:
    ...         match event:
    ...             case antiphon.TextDelta(text=text):
    ...                 print(text, end="")
    ...             case antiphon.AudioDelta(pcm16=pcm16):
    ...                 await speaker.write(pcm16)

    The same as `Generation`. Cancelling the task that reads cancels the request.
    """

    def __init__(self, call: GenerateCall) -> None:
        self._call = call
        self._reader = EventReader()

    @property
    def session_id(self) -> str:
        """The session's id on all stages; empty before the first event."""
        return self._reader.session_id

    @property
    def model(self) -> str:
        """The model that answers; empty before the first event."""
        return self._reader.model

    @property
    def sample_rate_hz(self) -> int:
        """Of the audio; 0 before the first event and without audio."""
        return self._reader.sample_rate_hz

    def cancel(self) -> None:
        """Stop the answer; reading it further raises `Cancelled`."""
        self._call.cancel()

    async def collect(self) -> Reply:
        """Read to the end; the whole answer. Instead of iterating, not after it."""
        self._reader.check_untouched()
        async with self:
            events = [event async for event in self]
        return join_events(events, self.sample_rate_hz)

    async def __anext__(self) -> Event:
        """The next event; waits for it, at most to the call's deadline."""
        while True:
            message = await self._next_message()
            if message is None:
                self._reader.check_ended()
                raise StopAsyncIteration
            try:
                event = self._reader.read(message)
            except AntiphonError:
                self._call.cancel()
                raise
            if event is not None:
                return event

    async def _next_message(self) -> speech_pb2.GenerateResponse | None:
        """The next message of the call; None at its end."""
        try:
            message = await self._call.read()
        except grpc.RpcError as failure:
            raise error_from_rpc(failure) from failure
        except asyncio.CancelledError as cancelled:
            # grpc raises this both when the call and when the reading task is cancelled.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise closed_by_caller() from cancelled
        return message if isinstance(message, speech_pb2.GenerateResponse) else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._call.cancel()


class AsyncClient:
    """Talks to a server's gRPC door from asyncio. Make it where a loop runs.

    >>> async with antiphon.AsyncClient("localhost:50050") as client:
    ...     reply = await client.generate("Say hello.", temperature=0.0).collect()
    ...     print(reply.text)
    ...     reply.save_wav("hello.wav")

    The same as `Client`; one client serves many requests at a time.
    """

    def __init__(self, address: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        target = checks.address(address)
        self._channel = (
            grpc.aio.insecure_channel(target, CHANNEL_OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, CHANNEL_OPTIONS)
        )
        self._stub = speech_stub(self._channel)
        self._closed = False

    async def server_info(self, *, timeout_s: float = 10.0) -> ServerInfo:
        """What the server serves."""
        check_open(self._closed)
        seconds = checks.timeout(timeout_s)
        try:
            answer = await self._stub.GetServerInfo(
                speech_pb2.GetServerInfoRequest(), timeout=seconds
            )
        except grpc.RpcError as failure:
            raise error_from_rpc(failure) from failure
        return server_info_from_proto(answer)

    def generate(
        self,
        messages: str | Sequence[Message],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGeneration:
        """Answer a conversation; a `str` is one user message.

        Returns at once, the request runs while its events are read. `timeout_s`
        is for the whole answer. Options: see `GenerateOptions`. Raises
        `InvalidArgument` for a message or an option that cannot be sent.
        """
        check_open(self._closed)
        seconds = checks.timeout(timeout_s)
        request = generate_request(messages, **options)
        return AsyncGeneration(self._stub.Generate(request, timeout=seconds))

    async def close(self) -> None:
        """Cancel what runs and close the connection."""
        self._closed = True
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
