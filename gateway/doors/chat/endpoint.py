"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace

from starlette.types import Message, Receive, Scope, Send

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError
from antiphon.sampling import SamplingRequest
from gateway.calls.call import Call
from gateway.calls.events import Started
from gateway.doors.access_log import Entry
from gateway.doors.chat.answer import AnswerHead, StreamAnswer, WholeAnswer, server_sent
from gateway.doors.chat.request import TALKER, ChatOrder, read_chat
from gateway.doors.http.body import read_body, while_connected
from gateway.doors.http.errors import BodyTooLarge, BodyTooSlow, TooManyValues, error_json
from gateway.doors.http.room import NoRoom, Room
from gateway.doors.sending import ClientStalled, pieces
from gateway.doors.speech import INPUT_STAGE, Order, Speech
from gateway.media.attachments import Attachments
from gateway.metrics import Metrics, Refused

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_BOUNDS = {
    BodyTooLarge: Refused.BODY_BYTES,
    TooManyValues: Refused.BODY_VALUES,
    BodyTooSlow: Refused.BODY_TIME,
    NoRoom: Refused.UPLOADS,
}


class ChatCompletions:
    """The endpoint, an ASGI application. Errors before the response are raised."""

    def __init__(self, speech: Speech, config: GatewayConfig, metrics: Metrics) -> None:
        self._speech = speech
        self._config = config
        self._metrics = metrics
        self._uploads = Room(config.max_upload_bytes, "request bodies", "gateway.max_upload_bytes")
        self._unread = Room(config.max_unread_bytes, "unread answers", "gateway.max_unread_bytes")
        metrics.watch("upload_bytes", "Bytes of bodies held", lambda: self._uploads.held_bytes)
        metrics.watch("unread_bytes", "Bytes of answers held", lambda: self._unread.held_bytes)

    def stop_uploads(self) -> None:
        """Refuse those who have not sent their request yet."""
        self._uploads.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; its journal entry is `scope["state"]["entry"]`."""
        self._speech.check_open()
        with ExitStack() as upload:
            chat = await self._read(scope, receive, upload)
            # The call takes what it needs of the attachments; nobody else keeps them.
            orders = [_order(chat)]
            chat = replace(chat, messages=(), attachments=Attachments())
            entry: Entry = scope["state"]["entry"]

            async def work(send: Send) -> None:
                async with self._speech.answer(orders.pop()) as call:
                    upload.close()
                    if chat.stream:
                        await self._stream(chat, call, entry, send)
                        return
                    body = await self._whole(chat, call, entry)
                await self._send_whole(body, scope["state"]["transport"], send)

            await while_connected(receive, send, work)

    async def _read(self, scope: Scope, receive: Receive, upload: ExitStack) -> ChatOrder:
        """The request; room for its body is held until `upload` is closed."""
        loop = asyncio.get_running_loop()
        clock = asyncio.timeout(self._config.body_timeout_s)

        def give_way() -> None:
            if not clock.expired():
                clock.reschedule(loop.time())

        holding = upload.enter_context(self._uploads.hold(give_way))
        try:
            body = await read_body(scope, receive, self._config, holding, clock)
        except AntiphonError as error:
            self._speech.check_open()
            if bound := _BOUNDS.get(type(error)):
                self._metrics.refuse(bound)
            raise
        return read_chat(body)

    async def _whole(self, chat: ChatOrder, call: Call, entry: Entry) -> bytes:
        answer = WholeAnswer(self._head(chat, entry))
        async for event in call:
            entry.note(event)
            answer.add(event)
        return answer.body()

    async def _send_whole(self, body: bytes, transport: asyncio.Transport, send: Send) -> None:
        """Send what no stage works on any more. Who takes nothing of it may have to give way."""
        length = (b"content-length", str(len(body)).encode())
        headers = [(b"content-type", b"application/json"), length]
        with self._unread.hold(transport.abort) as holding:
            try:
                holding.moved(len(body))
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                for piece in pieces({"type": "http.response.body", "body": body}):
                    await send(piece)
                    holding.moved(len(body))
            except NoRoom:
                self._metrics.refuse(Refused.UNREAD)
                raise

    async def _stream(self, chat: ChatOrder, call: Call, entry: Entry, send: Send) -> None:
        """Send events as they come; the response starts with the first of them."""
        answer = StreamAnswer(self._head(chat, entry))
        try:
            async for event in call:
                entry.note(event)
                if isinstance(event, Started):
                    start: Message = {"type": "http.response.start", "status": 200}
                    await send({**start, "headers": _STREAM_HEADERS})
                if data := answer.add(event):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        except ClientStalled:
            raise
        except AntiphonError as error:
            if not entry.session_id:
                raise
            entry.fail(error)
            data = server_sent(error_json(error))
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _head(self, chat: ChatOrder, entry: Entry) -> AnswerHead:
        return AnswerHead(
            id=f"chatcmpl-{entry.answer_id}",
            model=self._speech.stages.model_name(),
            created=int(time.time()),
            audio_id=f"audio_{entry.answer_id}" if chat.wants_audio else "",
            audio_format=chat.audio_format,
            include_usage=chat.include_usage,
            logprobs=chat.logprobs,
        )


def _order(chat: ChatOrder) -> Order:
    sampling = {INPUT_STAGE: chat.sampling}
    if chat.talker != SamplingRequest():
        sampling[TALKER] = chat.talker
    return Order(
        model=chat.model,
        messages=chat.messages,
        attachments=chat.attachments,
        outputs=chat.outputs,
        voice=chat.voice,
        voice_field="audio.voice",
        sampling=sampling,
        delivery=chat.delivery,
        chunk_policy=chat.chunk_policy,
    )
