"""Answers requests to an HTTP endpoint. It limits the size of the body and the time for sending the
answer. It also notices when the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError
from antiphon_gateway.admission.byte_budget import ByteBudget, Holder
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.calls.choices import Choices
from antiphon_gateway.endpoints.access_log import RequestLog
from antiphon_gateway.endpoints.http.body import read_body, while_connected
from antiphon_gateway.endpoints.http.client_deadline import with_client_deadline
from antiphon_gateway.endpoints.http.errors import BodyTooLarge, BodyTooSlow, TooManyValues
from antiphon_gateway.endpoints.http.fields import IgnoredFields
from antiphon_gateway.endpoints.http.response_send import ResponseSend, pieces
from antiphon_gateway.endpoints.ignored_fields import IgnoredFieldReport
from antiphon_gateway.endpoints.openai.audio import AnswerAudio
from antiphon_gateway.endpoints.openai.endpoint import (
    Answer,
    HttpEndpoint,
    Receiving,
    RequestContext,
)
from antiphon_gateway.endpoints.openai.spoken import (
    OwnSpokenAnswers,
    SharedSpokenAnswers,
    SpokenAnswers,
)
from antiphon_gateway.endpoints.openai.streaming import StreamedResponse, of_choice
from antiphon_gateway.failover.failover_segment import FailoverSegment
from antiphon_gateway.host_store import HostStore
from antiphon_gateway.media.encoding import EncoderThreads
from antiphon_gateway.metrics import Metrics, Refused
from antiphon_gateway.orders.order import Order
from antiphon_gateway.orders.prepared import PreparedRequest

_BOUNDS = {
    BodyTooLarge: Refused.BODY_BYTES,
    TooManyValues: Refused.BODY_VALUES,
    BodyTooSlow: Refused.BODY_TIME,
}


Preparing = Coroutine[Any, Any, PreparedRequest]


def _wait() -> None:
    """Do nothing, because nothing is sent until the answer is complete."""


class SharedByEndpoints:
    """State that is shared by all HTTP endpoints. It consists of the gateway's memory budget, the
    encoder threads, the spoken answers, and the ignored fields.

    Call `close` when no endpoint uses it any more.
    """

    def __init__(
        self,
        config: GatewayConfig,
        metrics: Metrics,
        memory: ByteBudget,
        store: HostStore | None = None,
    ) -> None:
        self.ignored = IgnoredFieldReport(metrics)
        self.encoders = EncoderThreads(config.media.encoder_threads)
        bounds = (config.media.spoken_keep_s, config.media.max_spoken_bytes)
        self.spoken: SpokenAnswers = (
            OwnSpokenAnswers(*bounds) if store is None else SharedSpokenAnswers(*bounds, store)
        )
        self.memory = memory

    def close(self) -> None:
        """Stop encoding."""
        self.encoders.close()


class EndpointApp:
    """An endpoint as an ASGI application. If an error occurs before the response has started, it is
    raised.
    """

    def __init__(
        self,
        endpoint: HttpEndpoint,
        calls: Calls,
        shared: SharedByEndpoints,
        config: GatewayConfig,
        metrics: Metrics,
    ) -> None:
        self._endpoint = endpoint
        self._calls = calls
        self._shared = shared
        self._config = config
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Its entry in the access log is `scope["state"]["entry"]`."""
        self._calls.check_open()
        entry: RequestLog = scope["state"]["entry"]
        transport: asyncio.Transport = scope["state"]["transport"]
        response_send: ResponseSend = scope["state"]["send"]
        with entry.admitted(), ExitStack() as upload:
            preparing, answer = await self._begin(scope, receive, entry, upload)
            # If the client disconnects right away, the coroutine is never started.
            with closing(preparing):
                audio = AnswerAudio(answer.encoding, self._shared.encoders)
                if not answer.streamed:
                    segments = self._segments(preparing, upload)
                    work = self._respond_whole(answer, audio, segments, entry, transport, send)
                    await while_connected(receive, response_send, work)
                    return
                keepalive_s = self._config.connections.keepalive_s
                response = StreamedResponse(answer, audio, transport, send, keepalive_s)
                segments = self._segments(preparing, upload, response.queued)
                works = [response.respond(segments, entry)]
                works += [response.keep_alive()] if response.takes_comments else []
                await while_connected(receive, response_send, *works)

    @asynccontextmanager
    async def _segments(
        self,
        preparing: Preparing,
        upload: ExitStack,
        on_queued: Callable[[], None] = _wait,
    ) -> AsyncIterator[FailoverSegment | Choices]:
        """Prepare a request and return the segments that answer it. See `Calls.choices`.

        From then on, the remaining memory of the body belongs to the request.
        """
        upload.close()
        async with self._calls.choices(await preparing, lambda _: on_queued()) as segments:
            yield segments

    async def _begin(
        self, scope: Scope, receive: Receive, entry: RequestLog, upload: ExitStack
    ) -> tuple[Preparing, Answer]:
        """Read the body. Returns the answer and an object that prepares the request. This object
        holds the only reference to the body.
        """
        body = await self._receive(scope, receive, upload)
        order, answer = self._read(body, entry)
        order = entry.for_key(with_client_deadline(order, scope, streamed=answer.streamed))
        return self._calls.prepare(order), answer

    def _read(self, body: Receiving, entry: RequestLog) -> tuple[Order, Answer]:
        """Parse the body. Ignored fields are reported even if the body is then rejected."""
        entry.ignored_fields = ignored = IgnoredFields(self._config.unknown_fields)
        try:
            return body.read(self._visit(entry, ignored))
        finally:
            self._shared.ignored.report(self._endpoint.path, entry.key.name, ignored)

    def _visit(self, entry: RequestLog, ignored: IgnoredFields) -> RequestContext:
        fleet = self._calls.fleet
        accepted = fleet.accepted()
        return RequestContext(
            answer_id=entry.answer_id,
            delivery=self._calls.delivery,
            sampling_stages=accepted.sampling_fields,
            stages=accepted.roles,
            voices=fleet.voices(),
            spoken=self._shared.spoken,
            max_choices=self._config.limits.max_choices,
            transcribe_instruction=self._config.media.transcribe_instruction,
            options=accepted.options,
            ignored=ignored,
        )

    async def _receive(self, scope: Scope, receive: Receive, upload: ExitStack) -> Receiving:
        """Receive the body. Its memory is leased until `upload` is closed."""
        loop, config = asyncio.get_running_loop(), self._config
        clock = asyncio.timeout(config.limits.body_timeout_s)

        def give_way() -> None:
            if not clock.expired():
                clock.reschedule(loop.time())

        holding = upload.enter_context(self._shared.memory.lease(Holder.UPLOADS, give_way))
        try:
            body = self._endpoint.receive(dict(scope["headers"]).get(b"content-type", b""), config)
            await read_body(scope, receive, config, holding, clock, body)
            return body
        except AntiphonError as error:
            self._calls.check_open()
            if bound := _BOUNDS.get(type(error)):
                self._metrics.refuse(bound)
            raise

    async def _respond_whole(
        self,
        answer: Answer,
        audio: AnswerAudio,
        segments: AbstractAsyncContextManager[FailoverSegment | Choices],
        entry: RequestLog,
        transport: asyncio.Transport,
        send: Send,
    ) -> None:
        async with segments as events:
            whole = await _whole(answer, audio, events, entry)
        await self._send_whole(answer, whole, transport, send)

    async def _send_whole(
        self, answer: Answer, body: bytes, transport: asyncio.Transport, send: Send
    ) -> None:
        """Send a complete answer. If the client doesn't read it, its connection may be closed to
        make room for others.
        """
        headers = [_content_type(answer), (b"content-length", str(len(body)).encode())]
        with self._shared.memory.lease(Holder.UNREAD, transport.abort) as holding:
            holding.moved(len(body))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for piece in pieces({"type": "http.response.body", "body": body}):
                await send(piece)
                holding.moved(len(body))


def endpoint_routes(
    endpoints: Sequence[HttpEndpoint],
    calls: Calls,
    shared: SharedByEndpoints,
    config: GatewayConfig,
    metrics: Metrics,
) -> list[BaseRoute]:
    """Return the routes for POST requests to the path of each endpoint."""
    return [
        Route(each.path, EndpointApp(each, calls, shared, config, metrics), methods=["POST"])
        for each in endpoints
    ]


async def _whole(
    answer: Answer, audio: AnswerAudio, events: FailoverSegment | Choices, entry: RequestLog
) -> bytes:
    parts = []
    async for told in events:
        entry.note(told)
        choice, event = of_choice(told)
        parts += [answer.add(each, choice) for each in await audio.encoded(event, choice)]
    return b"".join(parts)


def _content_type(answer: Answer) -> tuple[bytes, bytes]:
    return (b"content-type", answer.content_type.encode())
