"""Sends a streamed answer: its headers, its events as they come, comments while none comes.

Server-sent events have a place for comments and for an error after the headers, so their response
begins as soon as the request is queued: proxies close a connection that brings no byte for a
minute. Audio has neither, so its response begins with the first of it, and a request that fails
before that has a status code of its own.
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
    """The response of one streamed answer.

    Of server-sent events, a comment is sent when nothing has been sent for `keepalive_s`.
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
        self._sending = asyncio.Lock()  # an event may take several messages
        self._begun = self._ended = False
        self._sent_at = asyncio.get_running_loop().time()

    @property
    def takes_comments(self) -> bool:
        """Whether `keep_alive` is to run with `respond`."""
        return is_server_sent(self._answer.content_type)

    def queued(self) -> None:
        """The request waits; server-sent events begin now."""
        self._queued.set()

    async def respond(
        self,
        segments: AbstractAsyncContextManager[FailoverSegment | Choices],
        entry: RequestLog,
    ) -> None:
        """Send the events of the segments, or the error that ends them.

        Raises `AntiphonError` when the response has not begun, and `ClientStalled`.
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
        """Begin when the request is queued, or after a first silence; comment on each silence.

        Returns when the response is complete. Raises `ClientStalled`.
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
        """Send the headers, once."""
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
    """An event and the number of its choice; 0 where there is one."""
    return (told.choice, told.event) if isinstance(told, OfChoice) else (0, told)
