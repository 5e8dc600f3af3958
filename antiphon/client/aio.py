"""The asyncio client, with the methods of the blocking one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self, Unpack

from antiphon.client import answering, checks
from antiphon.client.aio_conversation import AsyncConversationCall
from antiphon.client.asyncio_channel import AsyncioChannel
from antiphon.client.connection import Tls, target
from antiphon.client.conversation_commands import ConversationOptions, open_request
from antiphon.client.conversing import DEFAULT_CONVERSATION_S, talk
from antiphon.client.events import Event, ServerInfo
from antiphon.client.reply import Reply
from antiphon.client.request import (
    DEFAULT_TIMEOUT_S,
    GenerateOptions,
    Message,
    generate_request,
)
from antiphon.client.retrying import Retry


class AsyncGeneration(AsyncIterator[Event]):
    """A streamed answer: an async iterator of `TextDelta`, `AudioDelta`, `Finished`.

    >>> async with client.generate("Tell me a story.") as generation:
    ...     async for event in generation:
    ...         match event:
    ...             case antiphon.TextDelta(text=text):
    ...                 print(text, end="")
    ...             case antiphon.AudioDelta(pcm16=pcm16):
    ...                 await speaker.write(pcm16)

    Works like `Generation`. Cancelling the reading task cancels the request.
    """

    def __init__(self, answer: answering.PendingAnswer) -> None:
        self._answer = answer

    @property
    def session_id(self) -> str:
        """The session's id on all stages. Empty before the first event."""
        return self._answer.reader.session_id

    @property
    def model(self) -> str:
        """The answering model. Empty before the first event."""
        return self._answer.reader.model

    @property
    def sample_rate_hz(self) -> int:
        """Sample rate of the audio. 0 before the first event and without audio."""
        return self._answer.reader.sample_rate_hz

    def cancel(self) -> None:
        """Cancel the answer. Reading it further raises `Cancelled`."""
        self._answer.cancel()

    async def collect(self) -> Reply:
        """Read the whole answer and return it. Raises `FailedPrecondition` after iterating."""
        return await self._answer.collect()

    async def __anext__(self) -> Event:
        """Return the next event. Waits at most until the call's deadline."""
        event = await self._answer.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._answer.cancel()


class AsyncClient:
    """A client of a server's gRPC endpoint for asyncio. Create it in a running loop.

    >>> async with antiphon.AsyncClient("localhost:50050") as client:
    ...     reply = await client.generate("Say hello.", temperature=0.0).collect()
    ...     print(reply.text)
    ...     reply.save_wav("hello.wav")

    Works like `Client`. One client serves many concurrent requests.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: bool | Tls = False,
        api_key: str | None = None,
        key_in_clear: bool = False,
        read_ahead_bytes: int | None = None,
        retry: Retry = Retry(),  # noqa: B008  it is frozen
    ) -> None:
        self._retry = checks.of_type("retry", retry, Retry)
        where = target(
            address, tls, api_key, key_in_clear=key_in_clear, read_ahead_bytes=read_ahead_bytes
        )
        self._channel = AsyncioChannel(where)

    async def server_info(self, *, timeout_s: float = 10.0) -> ServerInfo:
        """Return the served models and the server's features."""
        self._channel.check_open()
        seconds = checks.timeout(timeout_s)
        return await answering.server_info(self._channel, seconds, self._retry)

    def generate(
        self,
        messages: str | Sequence[Message],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        idle_timeout_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGeneration:
        """Answer a conversation; a `str` is a single user message. See `Client.generate`."""
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        request = generate_request(messages, **options)
        answer = answering.answer(self._channel, request, seconds, idle_s, self._retry)
        return AsyncGeneration(answer)

    def converse(
        self,
        *,
        model: str = "",
        timeout_s: float = DEFAULT_CONVERSATION_S,
        idle_timeout_s: float | None = None,
        **options: Unpack[ConversationOptions],
    ) -> AsyncConversationCall:
        """Return a conversation. Enter its context to open it. See `Client.converse`."""
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        opening = open_request(model, options)
        return AsyncConversationCall(talk(self._channel, opening, seconds, idle_s, self._retry))

    async def close(self) -> None:
        """Cancel running calls and close the connection."""
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
