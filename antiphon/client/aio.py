"""The asyncio client, which has the same methods as the blocking client."""

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
    """A streamed answer. Iterate over it to receive events such as `TextDelta`, `AudioDelta` and
    `Finished`.

    >>> async with client.generate("Tell me a story.") as generation:
    ...     async for event in generation:
    ...         match event:
    ...             case antiphon.TextDelta(text=text):
    ...                 print(text, end="")
    ...             case antiphon.AudioDelta(pcm16=pcm16):
    ...                 await speaker.write(pcm16)

    It works like `Generation`. Cancelling the task that is iterating also cancels the request.
    """

    def __init__(self, answer: answering.PendingAnswer) -> None:
        self._answer = answer

    @property
    def session_id(self) -> str:
        """The session ID, which is the same on every stage. Empty until the first event arrives."""
        return self._answer.reader.session_id

    @property
    def model(self) -> str:
        """The name of the model that generates the answer. Empty until the first event arrives."""
        return self._answer.reader.model

    @property
    def sample_rate_hz(self) -> int:
        """The sample rate of the audio in Hz. It is 0 until the first event arrives and remains 0
        if the answer contains no audio.
        """
        return self._answer.reader.sample_rate_hz

    def cancel(self) -> None:
        """Cancel the answer. Reading from it afterwards raises `Cancelled`."""
        self._answer.cancel()

    async def collect(self) -> Reply:
        """Read the whole answer and return it.

        Raises `FailedPrecondition` if some of its events have already been read.
        """
        return await self._answer.collect()

    async def __anext__(self) -> Event:
        """Wait for the next event and return it. Raises `DeadlineExceeded` if the call's deadline
        passes first.
        """
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
    """An asyncio client for a server's gRPC endpoint. Create it inside a running event loop.

    >>> async with antiphon.AsyncClient("localhost:50050") as client:
    ...     reply = await client.generate("Say hello.", temperature=0.0).collect()
    ...     print(reply.text)
    ...     reply.save_wav("hello.wav")

    It works like `Client`. One client can serve many concurrent requests.
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
        """Return the models and optional features that the server supports."""
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
        """Send a conversation to the model and stream its answer.

        If `messages` is a `str`, it is sent as a single user message. See `Client.generate` for the
        arguments.
        """
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
        """Return a new conversation, which opens when you enter its context.

        See `Client.converse` for the arguments.
        """
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        opening = open_request(model, options)
        return AsyncConversationCall(talk(self._channel, opening, seconds, idle_s, self._retry))

    async def close(self) -> None:
        """Cancel all running calls and close the connection."""
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
