"""Sends a streamed answer. It sends the headers, the events as they arrive, and comments while
there are no events.

Proxies close a connection if it doesn't deliver any data for a minute. Server-sent events can
contain comments and can still report errors after the headers. A response with events therefore
starts as soon as the request is queued. Audio can't contain comments or errors. An audio response
therefore starts only with the first piece of audio and can have an error status until then.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress

from starlette.types import Message, Send

from antiphon.errors import AntiphonError
from antiphon_gateway.calls.choices import Choices, OfChoice
from antiphon_gateway.endpoints.access_log import RequestLog
from antiphon_gateway.endpoints.ending import tell
from antiphon_gateway.endpoints.http.server_sent import COMMENT, is_server_sent
from antiphon_gateway.endpoints.openai.audio import AnswerAudio
from antiphon_gateway.endpoints.openai.endpoint import Answer
from antiphon_gateway.endpoints.sending import ClientStalled
from antiphon_gateway.failover.failover_segment import FailoverSegment
from antiphon_gateway.sessions.events import Event

_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class StreamedResponse:
    """The response for a streamed answer.

    If it consists of server-sent events, a comment is sent after every `keepalive_s` seconds
    without data.
    """

    def __init__(
        self,
        answer: Answer,
        audio: AnswerAudio,
        transport: asyncio.Transport,
        send: Send,
        keepalive_s: float,
    ) -> None:
        self._answer = answer
        self._audio = audio
        self._transport = transport
        self._send = send
        self._keepalive_s = keepalive_s
        self._queued = asyncio.Event()
        self._sending = asyncio.Lock()  # An event may consist of several messages.
        self._begun = self._ended = False
        self._sent_at = asyncio.get_running_loop().time()

    @property
    def takes_comments(self) -> bool:
        """Whether `keep_alive` should run concurrently with `respond`."""
        return is_server_sent(self._answer.content_type)

    def queued(self) -> None:
        """Start a response with server-sent events, because the request has to wait."""
        self._queued.set()

    async def respond(
        self,
        segments: AbstractAsyncContextManager[FailoverSegment | Choices],
        entry: RequestLog,
    ) -> None:
        """Send the segments' events, or the error that ends them.

        Raises `AntiphonError` if the response hasn't started yet, and `ClientStalled` if the client
        isn't reading.
        """
        try:
            async with segments as events:
                await tell(events, entry, self._send_event, self._send_error)
                await self._end()
        except ClientStalled:
            raise
        except AntiphonError as error:
            if self._ended or not self._begun:
                raise
            entry.fail(error)
            await self._send_error(entry, error)
            await self._end()

    async def keep_alive(self) -> None:
        """Start the response when the request is queued or after some time without data. From then
        on, send a comment whenever there has been no data for some time.

        Returns when the response is complete. Raises `ClientStalled` if the client isn't reading.
        """
        now = asyncio.get_running_loop().time
        with suppress(TimeoutError):
            async with asyncio.timeout(self._keepalive_s):
                await self._queued.wait()
        if self._queued.is_set():
            await self._begin()
        while not self._ended:
            await asyncio.sleep(self._sent_at + self._keepalive_s - now())
            await self._begin()
            async with self._sending:
                if not self._ended and now() >= self._sent_at + self._keepalive_s:
                    await self._send_now(_body(COMMENT))

    async def _send_event(self, told: Event | OfChoice) -> None:
        choice, event = of_choice(told)
        await self._begin()
        for each in await self._audio.encoded(event, choice):
            if data := self._answer.add(each, choice):
                await self._send_piece(data)

    async def _send_error(self, _: RequestLog, error: AntiphonError) -> None:
        if (told := self._answer.fail(error)) is None:
            self._transport.abort()
        else:
            await self._send_piece(told)

    async def _begin(self) -> None:
        """Send the headers, unless this has already been done. Later messages wait for
        the headers.
        """
        if self._begun:
            return
        async with self._sending:
            if self._begun:
                return
            self._begun = True
            headers = [(b"content-type", self._answer.content_type.encode()), *_HEADERS]
            await self._send_now({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_piece(self, data: bytes) -> None:
        async with self._sending:
            await self._send_now(_body(data))

    async def _end(self) -> None:
        async with self._sending:
            self._ended = True
            await self._send_now(_body(b"", more=False))

    async def _send_now(self, message: Message) -> None:
        await self._send(message)
        self._sent_at = asyncio.get_running_loop().time()


def _body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def of_choice(told: Event | OfChoice) -> tuple[int, Event]:
    """Return an event and the number of its choice. If there is only one choice, its
    number is 0.
    """
    return (told.choice, told.event) if isinstance(told, OfChoice) else (0, told)
