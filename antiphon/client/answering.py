"""One request to a gateway, from its call to its last event, whichever client makes it."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.client.calls import Channel, Method, Pauser, ReadCall
from antiphon.client.events import Event, ServerInfo, server_info_from_proto
from antiphon.client.reply import EventReader, Reply, join_events
from antiphon.client.retrying import Attempts, Retry, ask
from antiphon.errors import AntiphonError
from antiphon.v1 import speech_pb2

SERVICE = "/antiphon.v1.SpeechService"
GET_SERVER_INFO = Method(
    f"{SERVICE}/GetServerInfo",
    speech_pb2.GetServerInfoRequest,
    speech_pb2.GetServerInfoResponse.FromString,
)
GENERATE = Method(
    f"{SERVICE}/Generate", speech_pb2.GenerateRequest, speech_pb2.GenerateResponse.FromString
)

Start = Callable[[float], ReadCall[speech_pb2.GenerateResponse]]


class PendingAnswer:
    """An answer on its way. Its call is made at once, and again while nothing has come of it."""

    def __init__(self, start: Start, attempts: Attempts, pauser: Pauser) -> None:
        self.reader = EventReader()
        self._start = start
        self._attempts = attempts
        self._pauser = pauser
        self._answered = False
        self._call = start(attempts.left_s)

    async def next_event(self) -> Event | None:
        """The next event; None at the end. Raises what ended the answer."""
        while (message := await self._next_message()) is not None:
            try:
                event = self.reader.read(message)
            except AntiphonError:
                self._call.cancel()
                raise
            if event is not None:
                return event
        self.reader.check_ended()
        return None

    async def collect(self) -> Reply:
        """Read to the end."""
        self.reader.check_untouched()
        events: list[Event] = []
        try:
            while (event := await self.next_event()) is not None:
                events.append(event)
        finally:
            self.cancel()
        return join_events(events, self.reader.sample_rate_hz)

    def cancel(self) -> None:
        """Stop the answer; reading it further raises `Cancelled`."""
        self._pauser.wake()
        self._call.cancel()

    async def _next_message(self) -> speech_pb2.GenerateResponse | None:
        while True:
            try:
                message = await self._call.read()
            except AntiphonError as error:
                pause_s = None if self._answered else self._attempts.pause_after(error)
                if pause_s is None:
                    raise
            else:
                self._answered = True
                return message
            await self._pauser.pause(pause_s)
            self._call = self._start(self._attempts.left_s)
            if self._pauser.woken:
                # Cancelled after the pause, and perhaps before there was this call.
                self._call.cancel()


async def server_info(channel: Channel, timeout_s: float, retry: Retry) -> ServerInfo:
    """What the server serves."""
    request = speech_pb2.GetServerInfoRequest()
    return server_info_from_proto(await ask(channel, GET_SERVER_INFO, request, timeout_s, retry))


def answer(
    channel: Channel,
    request: speech_pb2.GenerateRequest,
    timeout_s: float,
    idle_s: float | None,
    retry: Retry,
) -> PendingAnswer:
    """Start a request."""

    def start(seconds: float) -> ReadCall[speech_pb2.GenerateResponse]:
        return channel.stream(GENERATE, request, seconds, idle_s)

    return PendingAnswer(start, Attempts(retry, timeout_s), channel.pauser())
