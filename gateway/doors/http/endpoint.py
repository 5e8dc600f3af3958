"""Answering at an HTTP door: the body bounded, the client watched, the answer sent in time."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from starlette.types import Message, Receive, Scope, Send

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError
from gateway.byte_budget import BudgetExceeded, ByteBudget
from gateway.calls.calls import Calls
from gateway.calls.choices import Choices, OfChoice
from gateway.calls.events import Event
from gateway.calls.failover.segment import FailoverSegment
from gateway.calls.order import Order
from gateway.doors.access_log import Entry
from gateway.doors.ending import tell
from gateway.doors.http.audio import AnswerAudio
from gateway.doors.http.body import read_body, while_connected
from gateway.doors.http.door import Answer, Door, Receiving, Visit
from gateway.doors.http.errors import BodyTooLarge, BodyTooSlow, TooManyValues
from gateway.doors.http.fields import IgnoredFields
from gateway.doors.http.patience import with_patience
from gateway.doors.http.spoken import SpokenAnswers
from gateway.doors.ignored_fields import IgnoredFieldReport
from gateway.doors.sending import pieces
from gateway.media.encoding import EncoderThreads
from gateway.metrics import Metrics, Refused

_STREAM_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]

_BOUNDS = {
    BodyTooLarge: Refused.BODY_BYTES,
    TooManyValues: Refused.BODY_VALUES,
    BodyTooSlow: Refused.BODY_TIME,
    BudgetExceeded: Refused.UPLOADS,
}


class SharedByDoors:
    """What there is once for all HTTP doors: room for bodies and whole answers, threads that
    encode, what was said, what was ignored. Close it when no door needs it any more."""

    def __init__(self, config: GatewayConfig, metrics: Metrics, uploads: ByteBudget) -> None:
        self.ignored = IgnoredFieldReport(metrics)
        self.encoders = EncoderThreads(config.encoder_threads)
        self.spoken = SpokenAnswers(config.spoken_keep_s, config.max_spoken_bytes)
        self.uploads = uploads
        self.unread = ByteBudget(
            config.max_unread_bytes, "unread answers", "gateway.max_unread_bytes"
        )
        metrics.watch(
            "upload_bytes",
            "Bytes of bodies and fetched files held",
            lambda: self.uploads.held_bytes,
        )
        metrics.watch("unread_bytes", "Bytes of answers held", lambda: self.unread.held_bytes)

    def stop_uploads(self) -> None:
        """Refuse those who have not sent their request yet."""
        self.uploads.clear()

    def close(self) -> None:
        """Encode nothing more."""
        self.encoders.close()


class HttpEndpoint:
    """One door as an ASGI application. Errors before the response are raised."""

    def __init__(
        self,
        door: Door,
        calls: Calls,
        shared: SharedByDoors,
        config: GatewayConfig,
        metrics: Metrics,
    ) -> None:
        self._door = door
        self._calls = calls
        self._shared = shared
        self._config = config
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; its entry in the access log is `scope["state"]["entry"]`."""
        self._calls.check_open()
        entry: Entry = scope["state"]["entry"]
        transport: asyncio.Transport = scope["state"]["transport"]
        with entry.admitted(), ExitStack() as upload:
            body = await self._receive(scope, receive, upload)
            order, answer = self._read(body, entry)
            # The stages get the attachments; nobody here keeps them.
            orders = [entry.for_key(with_patience(order, scope, streamed=answer.streamed))]
            del body, order

            async def work(send: Send) -> None:
                async with self._calls.choices(orders.pop(), lambda _: upload.close()) as events:
                    upload.close()
                    audio = AnswerAudio(answer.encoding, self._shared.encoders)
                    if answer.streamed:
                        await _stream(answer, audio, events, entry, transport, send)
                        return
                    whole = await _whole(answer, audio, events, entry)
                await self._send_whole(answer, whole, transport, send)

            await while_connected(receive, send, work)

    def _read(self, body: Receiving, entry: Entry) -> tuple[Order, Answer]:
        """What the body asks for. Fields that are ignored are reported even if it will not do."""
        entry.ignored_fields = ignored = IgnoredFields(self._config.unknown_fields)
        try:
            return body.read(self._visit(entry, ignored))
        finally:
            self._shared.ignored.report(self._door.path, entry.key.name, ignored)

    def _visit(self, entry: Entry, ignored: IgnoredFields) -> Visit:
        fleet = self._calls.fleet
        accepted = fleet.accepted()
        return Visit(
            answer_id=entry.answer_id,
            delivery=self._calls.delivery,
            sampling_stages=accepted.sampling_fields,
            stages=accepted.roles,
            voices=fleet.voices(),
            spoken=self._shared.spoken,
            max_choices=self._config.max_choices,
            transcribe_instruction=self._config.transcribe_instruction,
            options=accepted.options,
            ignored=ignored,
        )

    async def _receive(self, scope: Scope, receive: Receive, upload: ExitStack) -> Receiving:
        """The body; room for it is held until `upload` is closed."""
        loop, config = asyncio.get_running_loop(), self._config
        clock = asyncio.timeout(config.body_timeout_s)

        def give_way() -> None:
            if not clock.expired():
                clock.reschedule(loop.time())

        holding = upload.enter_context(self._shared.uploads.lease(give_way))
        try:
            body = self._door.receive(dict(scope["headers"]).get(b"content-type", b""), config)
            await read_body(scope, receive, config, holding, clock, body)
            return body
        except AntiphonError as error:
            self._calls.check_open()
            if bound := _BOUNDS.get(type(error)):
                self._metrics.refuse(bound)
            raise

    async def _send_whole(
        self, answer: Answer, body: bytes, transport: asyncio.Transport, send: Send
    ) -> None:
        """Send what no stage works on any more. Who takes nothing of it may have to give way."""
        headers = [_content_type(answer), (b"content-length", str(len(body)).encode())]
        with self._shared.unread.lease(transport.abort) as holding:
            try:
                holding.moved(len(body))
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                for piece in pieces({"type": "http.response.body", "body": body}):
                    await send(piece)
                    holding.moved(len(body))
            except BudgetExceeded:
                self._metrics.refuse(Refused.UNREAD)
                raise


async def _stream(
    answer: Answer,
    audio: AnswerAudio,
    events: FailoverSegment | Choices,
    entry: Entry,
    transport: asyncio.Transport,
    send: Send,
) -> None:
    """Send events as they come; the response starts with the first of them."""

    started = False

    async def send_event(told: Event | OfChoice) -> None:
        nonlocal started
        choice, event = _of_choice(told)
        if not started:
            started = True
            headers = [_content_type(answer), *_STREAM_HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        for each in await audio.encoded(event, choice):
            if data := answer.add(each, choice):
                await send(_piece(data))

    async def send_error(entry: Entry, error: AntiphonError) -> None:
        if (told := answer.fail(error)) is None:
            transport.abort()
        else:
            await send(_piece(told))

    await tell(events, entry, send_event, send_error)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _whole(
    answer: Answer, audio: AnswerAudio, events: FailoverSegment | Choices, entry: Entry
) -> bytes:
    parts = []
    async for told in events:
        entry.note(told)
        choice, event = _of_choice(told)
        parts += [answer.add(each, choice) for each in await audio.encoded(event, choice)]
    return b"".join(parts)


def _of_choice(told: Event | OfChoice) -> tuple[int, Event]:
    return (told.choice, told.event) if isinstance(told, OfChoice) else (0, told)


def _piece(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


def _content_type(answer: Answer) -> tuple[bytes, bytes]:
    return (b"content-type", answer.content_type.encode())
