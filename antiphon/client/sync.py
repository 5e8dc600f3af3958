"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, Unpack

from antiphon.client import answering, checks
from antiphon.client.blocking_channel import BlockingChannel
from antiphon.client.calls import now
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
from antiphon.client.sync_conversation import ConversationCall


class Generation(Iterator[Event]):
    """A streamed answer. Iterate over it to receive events such as `TextDelta`, `AudioDelta` and
    `Finished`.

    >>> with client.generate("Tell me a story.") as generation:
    ...     for event in generation:
    ...         match event:
    ...             case antiphon.TextDelta(text=text):
    ...                 print(text, end="")
    ...             case antiphon.AudioDelta(pcm16=pcm16):
    ...                 speaker.write(pcm16)

    If the request fails, the iteration raises an `AntiphonError`, even if some events have already
    been returned. Leaving the `with` block early cancels the request and frees its resources on
    every stage. `session_id`, `model` and `sample_rate_hz` are available once the first event has
    arrived.
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
        """Cancel the answer. Reading from it afterwards raises `Cancelled`. This method can be
        called from any thread.
        """
        self._answer.cancel()

    def collect(self) -> Reply:
        """Read the whole answer and return it.

        Raises `FailedPrecondition` if some of its events have already been read.
        """
        return now(self._answer.collect())

    def __next__(self) -> Event:
        """Wait for the next event and return it. Raises `DeadlineExceeded` if the call's deadline
        passes first.
        """
        event = now(self._answer.next_event())
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._answer.cancel()


class Client:
    """A blocking client for a server's gRPC endpoint.

    >>> with antiphon.Client("localhost:50050") as client:
    ...     reply = client.generate("Say hello.", temperature=0.0).collect()
    ...     print(reply.text)
    ...     reply.save_wav("hello.wav")

    A client can be shared between threads and can make many requests concurrently. Every failure is
    raised as an `antiphon.AntiphonError`. If it was caused by a `grpc.RpcError`, that error is
    available as `__cause__`. If the error's `retryable` is true, the same request may succeed
    later.

    Set `tls` to True if the server's certificate was issued by a public CA. For a private CA or a
    client certificate, pass a `Tls` instead. `api_key` is sent with every call. The client only
    sends a key to another machine over TLS, unless you set `key_in_clear=True`.

    `read_ahead_bytes` limits how much of an answer is buffered before you read it. If you stop
    reading, the stages stop generating once this limit is reached. By default, gRPC chooses the
    limit.

    `retry` configures how failed calls are retried. By default, the client retries for one minute
    if the server is unreachable. Use `Retry(attempts=1)` to disable retries.
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
        self._channel = BlockingChannel(where)

    def server_info(self, *, timeout_s: float = 10.0) -> ServerInfo:
        """Return the models and optional features that the server supports."""
        self._channel.check_open()
        seconds = checks.timeout(timeout_s)
        return now(answering.server_info(self._channel, seconds, self._retry))

    def generate(
        self,
        messages: str | Sequence[Message],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        idle_timeout_s: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Send a conversation to the model and stream its answer.

        If `messages` is a `str`, it is sent as a single user message. This method returns
        immediately, while the request is still running. `timeout_s` limits the duration of the
        entire answer, including retries. `idle_timeout_s` limits the wait for each message. It is
        not set by default, because some requests receive no message until the whole answer is
        complete. The options are described in `GenerateOptions`. Raises `InvalidArgument` if a
        message or an option is invalid.
        """
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        request = generate_request(messages, **options)
        return Generation(answering.answer(self._channel, request, seconds, idle_s, self._retry))

    def converse(
        self,
        *,
        model: str = "",
        timeout_s: float = DEFAULT_CONVERSATION_S,
        idle_timeout_s: float | None = None,
        **options: Unpack[ConversationOptions],
    ) -> ConversationCall:
        """Return a new conversation, which can have several turns. It opens when you enter its
        context.

        `timeout_s` limits the duration of the entire conversation and defaults to one hour. The
        server enforces its own limit. `idle_timeout_s` limits the wait for each event. If it is
        None, the client waits for as long as the user is silent. The settings are described in
        `ConversationOptions`.
        """
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        opening = open_request(model, options)
        return ConversationCall(talk(self._channel, opening, seconds, idle_s, self._retry))

    def close(self) -> None:
        """Cancel all running calls and close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
