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
    """An answer on its way: an iterator of `TextDelta`, `AudioDelta`, `Finished`.

    >>> with client.generate("Tell me a story.") as generation:
    ...     for event in generation:
    ...         match event:
    ...             case antiphon.TextDelta(text=text):
    ...                 print(text, end="")
    ...             case antiphon.AudioDelta(pcm16=pcm16):
    ...                 speaker.write(pcm16)

    Iterating raises an `AntiphonError` when the request fails, whatever was
    delivered before. Leaving the `with` block early cancels the request and frees
    all stages. `session_id`, `model` and `sample_rate_hz` are known from the first
    event on.
    """

    def __init__(self, answer: answering.PendingAnswer) -> None:
        self._answer = answer

    @property
    def session_id(self) -> str:
        """The session's id on all stages; empty before the first event."""
        return self._answer.reader.session_id

    @property
    def model(self) -> str:
        """The model that answers; empty before the first event."""
        return self._answer.reader.model

    @property
    def sample_rate_hz(self) -> int:
        """Of the audio; 0 before the first event and without audio."""
        return self._answer.reader.sample_rate_hz

    def cancel(self) -> None:
        """Stop the answer, from any thread; reading it further raises `Cancelled`."""
        self._answer.cancel()

    def collect(self) -> Reply:
        """Read to the end; the whole answer. Instead of iterating, not after it."""
        return now(self._answer.collect())

    def __next__(self) -> Event:
        """The next event; waits for it, at most to the call's deadline."""
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
    """Talks to a server's gRPC endpoint and blocks while it does.

    >>> with antiphon.Client("localhost:50050") as client:
    ...     reply = client.generate("Say hello.", temperature=0.0).collect()
    ...     print(reply.text)
    ...     reply.save_wav("hello.wav")

    One client serves many threads and many requests at a time. Every failure is
    an `antiphon.AntiphonError` whose `__cause__` is the `grpc.RpcError`, if there
    was one; its `retryable` tells whether the same request may succeed later.

    `tls` is True for a server with a certificate of a public authority, a `Tls` for another or
    for a certificate of the client's own. `api_key` goes with every call; a server that is not
    on this machine must have TLS then, or `key_in_clear` must say that the network may read it.
    `read_ahead_bytes` bounds how much of an answer comes before it is read: what a listener who
    pauses does not take, the stages do not make then. Unset, grpc reads ahead as it finds best.
    `retry` says when a failed call is repeated; see `Retry`. By default a server that is away is
    tried for a minute. `Retry(attempts=1)` disables it.
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
        """What the server serves."""
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
        """Answer a conversation; a `str` is one user message.

        Returns at once, the request runs while its events are read. `timeout_s`
        is for the whole answer, retries included; `idle_timeout_s` for the wait for each of
        its messages. None leaves that to the server, which bounds its stages' silence: an answer
        delivered whole is silent until it is there. Options: see `GenerateOptions`. Raises
        `InvalidArgument` for a message or an option that cannot be sent.
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
        """A conversation of several turns: enter its context to open it.

        `timeout_s` is for the whole conversation, an hour unless it is given; the server bounds
        it too. `idle_timeout_s` is for the wait for each event: None waits for as long as the
        user is silent. Settings: see `ConversationOptions`.
        """
        self._channel.check_open()
        seconds, idle_s = checks.timeout(timeout_s), checks.idle_timeout(idle_timeout_s)
        opening = open_request(model, options)
        return ConversationCall(talk(self._channel, opening, seconds, idle_s, self._retry))

    def close(self) -> None:
        """Cancel what runs and close the connection."""
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
