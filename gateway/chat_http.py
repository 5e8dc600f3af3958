"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from antiphon.errors import AntiphonError
from antiphon.sampling import SamplingRequest
from gateway.call import Call
from gateway.chat_answer import AnswerHead, StreamAnswer, WholeAnswer, server_sent
from gateway.chat_request import TALKER, ChatOrder, read_chat
from gateway.events import Started
from gateway.http_body import read_body, while_connected
from gateway.http_errors import error_json
from gateway.journal import Entry
from gateway.sending import ClientStalled, send_in_time
from gateway.speech import INPUT_STAGE, Order, Speech

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ChatCompletions:
    """The endpoint, an ASGI application. Errors before the response are raised."""

    def __init__(self, speech: Speech, *, max_body_bytes: int, send_timeout_s: float) -> None:
        self._speech = speech
        self._max_body_bytes = max_body_bytes
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; its journal entry is `scope["state"]["entry"]`."""
        self._speech.check_open()
        body = await read_body(scope, receive, self._max_body_bytes)
        chat = read_chat(body)
        entry: Entry = scope["state"]["entry"]
        answer = self._stream if chat.stream else self._whole

        async def work(send: Send) -> None:
            async with self._speech.answer(_order(chat)) as call:
                await answer(chat, call, entry, scope, receive, send)

        await while_connected(receive, send, work)

    async def _whole(
        self,
        chat: ChatOrder,
        call: Call,
        entry: Entry,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        answer = WholeAnswer(self._head(chat, entry))
        async for event in call:
            entry.note(event)
            answer.add(event)
        await Response(answer.body(), media_type="application/json")(scope, receive, send)

    async def _stream(
        self,
        chat: ChatOrder,
        call: Call,
        entry: Entry,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send events as they come; the response starts with the first of them."""
        answer = StreamAnswer(self._head(chat, entry))
        try:
            async for event in call:
                entry.note(event)
                if isinstance(event, Started):
                    start: Message = {"type": "http.response.start", "status": 200}
                    await send({**start, "headers": _STREAM_HEADERS})
                if data := answer.add(event):
                    await self._send(send, data)
        except ClientStalled:
            raise
        except AntiphonError as error:
            if not entry.session_id:
                raise
            entry.fail(error)
            await self._send(send, server_sent(error_json(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        message: Message = {"type": "http.response.body", "body": data, "more_body": True}
        await send_in_time(send(message), self._send_timeout_s)

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
