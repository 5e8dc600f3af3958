"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, Unpack

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
from antiphon.v1 import speech_pb2, speech_pb2_grpc
from antiphon.wire.status import error_from_rpc


class GenerateCall(Protocol):
    """A running `Generate` call, as far as it is used here."""

    def __next__(self) -> speech_pb2.GenerateResponse: ...

    def cancel(self) -> object:
        """End the call."""


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

    def __init__(self, call: GenerateCall) -> None:
        self._call = call
        self._reader = EventReader()
        self._cancelled = False

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
        """Stop the answer, from any thread; reading it further raises `Cancelled`."""
        self._cancelled = True
        self._call.cancel()

    def collect(self) -> Reply:
        """Read to the end; the whole answer. Instead of iterating, not after it."""
        self._reader.check_untouched()
        with self:
            events = list(self)
        return join_events(events, self.sample_rate_hz)

    def __next__(self) -> Event:
        """The next event; waits for it, at most to the call's deadline."""
        while True:
            message = self._next_message()
            if message is None:
                self._reader.check_ended()
                raise StopIteration
            try:
                event = self._reader.read(message)
            except AntiphonError:
                self._call.cancel()
                raise
            if event is not None:
                return event

    def _next_message(self) -> speech_pb2.GenerateResponse | None:
        """The next message of the call; None at its end."""
        try:
            return next(self._call, None)
        except grpc.RpcError as failure:
            if self._cancelled:
                raise closed_by_caller() from failure
            raise error_from_rpc(failure) from failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._call.cancel()


class Client:
    """Talks to a server's gRPC door and blocks while it does.

    >>> with antiphon.Client("localhost:50050") as client:
    ...     reply = client.generate("Say hello.", temperature=0.0).collect()
    ...     print(reply.text)
    ...     reply.save_wav("hello.wav")

    One client serves many threads and many requests at a time. Every failure is
    an `antiphon.AntiphonError` whose `__cause__` is the `grpc.RpcError`, if there
    was one; its `retryable` tells whether the same request may succeed later.
    Nothing is retried by itself. `credentials` opens a TLS channel.
    """

    def __init__(self, address: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        target = checks.address(address)
        self._channel = (
            grpc.insecure_channel(target, CHANNEL_OPTIONS)
            if credentials is None
            else grpc.secure_channel(target, credentials, CHANNEL_OPTIONS)
        )
        self._stub = speech_pb2_grpc.SpeechServiceStub(self._channel)
        self._closed = False

    def server_info(self, *, timeout_s: float = 10.0) -> ServerInfo:
        """What the server serves."""
        check_open(self._closed)
        seconds = checks.timeout(timeout_s)
        try:
            answer = self._stub.GetServerInfo(speech_pb2.GetServerInfoRequest(), timeout=seconds)
        except grpc.RpcError as failure:
            raise error_from_rpc(failure) from failure
        return server_info_from_proto(answer)

    def generate(
        self,
        messages: str | Sequence[Message],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Answer a conversation; a `str` is one user message.

        Returns at once, the request runs while its events are read. `timeout_s`
        is for the whole answer. Options: see `GenerateOptions`. Raises
        `InvalidArgument` for a message or an option that cannot be sent.
        """
        check_open(self._closed)
        seconds = checks.timeout(timeout_s)
        request = generate_request(messages, **options)
        return Generation(self._stub.Generate(request, timeout=seconds))

    def close(self) -> None:
        """Cancel what runs and close the connection."""
        self._closed = True
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
