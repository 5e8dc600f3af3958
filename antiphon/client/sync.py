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
    """A streamed answer: an iterator of `TextDelta`, `AudioDelta`, `Finished`.

    >>> with client.generate("Tell me a story.") as generation:
    ...     for event in generation:
    ...         match event:
    ...             case antiphon.TextDelta(text=text):
    ...                 print(text, end="")
    ...             case antiphon.AudioDelta(pcm16=pcm16):
    ...                 speaker.write(pcm16)

    Iterating raises an `AntiphonError` when the request fails, even after some events. Leaving the
    `with` block early cancels the request and frees all stages. `session_id`, `model` and
    `sample_rate_hz` are set from the first event on.
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
        """Cancel the answer, from any thread. Reading it further raises `Cancelled`."""
        self._answer.cancel()

    def collect(self) -> Reply:
        """Read the whole answer and return it. Raises `FailedPrecondition` after iterating."""
        return now(self._answer.collect())

    def __next__(self) -> Event:
        """Return the next event. Waits at most until the call's deadline."""
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
    """A blocking client of a server's gRPC endpoint.

    >>> with antiphon.Client("localhost:50050") as client:
    ...     reply = client.generate("Say hello.", temperature=0.0).collect()
    ...     print(reply.text)
    ...     reply.save_wav("hello.wav")

    One client serves many threads and concurrent requests. Every failure is an
    `antiphon.AntiphonError`. Its `__cause__` is the `grpc.RpcError`, if there was one. Its
    `retryable` is true if the same request may succeed later.

    `tls` is True for a server with a certificate of a public CA, or a `Tls` for a private CA or a
    client certificate. `api_key` is sent with every call. For a server on another machine it
    requires TLS, or `key_in_clear=True` to send it unencrypted.

    `read_ahead_bytes` bounds how much of an answer is buffered before it is read. When the reader
    pauses, the stages then stop generating. By default gRPC chooses.

    `retry` configures the repetition of failed calls; see `Retry`. By default an unreachable server
    is retried for a minute. `Retry(attempts=1)` disables retries.
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
        """Return the served models and the server's features."""
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
        """Answer a conversation; a `str` is a single user message.

        Returns immediately; the request runs while its events are read. `timeout_s` bounds the
        whole answer including retries, `idle_timeout_s` the wait for each message. By default the
        server bounds the wait: an answer that is delivered whole sends nothing until it is
        complete. For options see `GenerateOptions`. Raises `InvalidArgument` for an invalid message
        or option.
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
        """Return a conversation of several turns. Enter its context to open it.

        `timeout_s` bounds the whole conversation, by default to an hour; the server has a bound
        too. `idle_timeout_s` bounds the wait for each event. None waits for as long as the user is
        silent. For settings see `ConversationOptions`.
        """
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        opening = open_request(model, options)
        return ConversationCall(talk(self._channel, opening, seconds, idle_s, self._retry))

    def close(self) -> None:
        """Cancel running calls and close the connection."""
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
