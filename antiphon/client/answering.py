"""Handles a single request to a gateway, from the call to its last event. Both clients share this
module.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.client.calls import Channel, Method, Pauser, ReadCall
from antiphon.client.endings import Ending, OneReader
from antiphon.client.events import Event, ServerInfo, server_info_from_proto
from antiphon.client.reply import EventReader, Reply, join_events
from antiphon.client.resuming import AnswerPosition
from antiphon.client.retrying import Attempts, Retry, ask, server_is_away
from antiphon.errors import AntiphonError, Unavailable
from antiphon.v1 import session_pb2, speech_pb2
from antiphon.wire.convert import error_from_proto

SERVICE = "/antiphon.v1.SpeechService"
GET_SERVER_INFO = Method(
    f"{SERVICE}/GetServerInfo",
    speech_pb2.GetServerInfoRequest,
    speech_pb2.GetServerInfoResponse.FromString,
)
GENERATE = Method(
    f"{SERVICE}/Generate", speech_pb2.GenerateRequest, speech_pb2.GenerateResponse.FromString
)

Start = Callable[[float, speech_pb2.DeliveredPart | None], ReadCall[speech_pb2.GenerateResponse]]
"""A function that starts a call with a timeout in seconds. The second argument describes the part
of the answer that has already been received, if any.
"""


class PendingAnswer:
    """An answer in progress.

    The call starts immediately. If the connection to the server is lost, the request is sent again.
    If nothing has been received yet, the answer starts over. Otherwise, it continues where it left
    off.
    """

    def __init__(self, start: Start, attempts: Attempts, pauser: Pauser) -> None:
        self.reader = EventReader()
        self._start = start
        self._attempts = attempts
        self._pauser = pauser
        self._position = AnswerPosition()
        self._ending = Ending()
        self._one_reader = OneReader()
        # The server's own error is more specific than the connection error that follows it.
        self._last_words: Unavailable | None = None
        self._call = start(attempts.left_s, None)

    async def next_event(self) -> Event | None:
        """Return the next event, or None at the end of the answer.

        Raises the error that ended the answer, if it failed, and `FailedPrecondition` if another
        task or thread is reading.
        """
        with self._one_reader:
            return await self._next_event()

    async def collect(self) -> Reply:
        """Read the whole answer and return it."""
        events: list[Event] = []
        with self._one_reader:
            self.reader.check_untouched()
            try:
                while (event := await self._next_event()) is not None:
                    events.append(event)
            finally:
                self.cancel()
        return join_events(events, self.reader.sample_rate_hz)

    def cancel(self) -> None:
        """Cancel the answer. Reading from it afterwards raises `Cancelled`, unless its end has
        already been read.
        """
        self._pauser.wake()
        self._call.cancel()

    async def _next_event(self) -> Event | None:
        self._ending.check()
        try:
            while (message := await self._next_message()) is not None:
                event = self.reader.read(message)
                if event is not None:
                    return event
            self.reader.check_ended()
        except AntiphonError as error:
            self._ending.set(error)
            self._call.fail(error)
            raise
        return None

    async def _next_message(self) -> speech_pb2.GenerateResponse | None:
        while True:
            try:
                message = await self._call.read()
                if message is not None and message.HasField("error"):
                    self._raise_if_the_servers_own(message.error)
            except AntiphonError as error:
                self._call.fail(error)
                pause_s = self._pause_after(error)
                if pause_s is None and server_is_away(error) and self._last_words:
                    raise self._attempts.ended(self._last_words, error) from error
                if pause_s is None:
                    raise self._attempts.ended(error) from error.__cause__
            else:
                if message is not None:
                    self._position.note(message)
                    # This doesn't count as a success, because a server might start and fail on
                    # every attempt.
                    if not (message.HasField("started") or message.HasField("progress")):
                        self._attempts.succeeded()
                return message
            await self._pauser.pause(pause_s)
            self._call = self._start(self._attempts.left_s, self._position.delivered)
            if self._pauser.woken:
                # The answer was cancelled during or after the pause, possibly before this call
                # existed.
                self._call.cancel()

    def _pause_after(self, error: AntiphonError) -> float | None:
        """Return the number of seconds until the next attempt, or None if the call must not be
        retried.
        """
        if not self._position.begun:
            return self._attempts.pause_after(error)
        # An answer that was partly delivered can be continued only if its server was lost.
        lost = isinstance(error, Unavailable) and self._position.delivered is not None
        return self._attempts.pause_after(error) if lost else None

    def _raise_if_the_servers_own(self, error: session_pb2.SessionError) -> None:
        """Raise the error if the server is shutting down. In that case, another server may be able
        to continue the answer.
        """
        reported = error_from_proto(error)
        if isinstance(reported, Unavailable) and server_is_away(reported):
            self._last_words = reported
            raise reported


async def server_info(channel: Channel, timeout_s: float, retry: Retry) -> ServerInfo:
    """Return the models and optional features that the server supports."""
    request = speech_pb2.GetServerInfoRequest()
    return server_info_from_proto(await ask(channel, GET_SERVER_INFO, request, timeout_s, retry))


def answer(
    channel: Channel,
    request: speech_pb2.GenerateRequest,
    timeout_s: float,
    idle_s: float | None,
    retry: Retry,
) -> PendingAnswer:
    """Start a request and return its answer."""

    def start(
        seconds: float, delivered: speech_pb2.DeliveredPart | None
    ) -> ReadCall[speech_pb2.GenerateResponse]:
        if delivered is not None:
            request.delivered.CopyFrom(delivered)
        return channel.stream(GENERATE, request, seconds, idle_s)

    return PendingAnswer(start, Attempts(retry, timeout_s, channel.contact), channel.pauser())
