"""The HTTP door: routes, and what every request goes through."""

from __future__ import annotations

import logging
import re
import uuid
from functools import partial

import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, Internal, InvalidArgument, NotFound
from gateway.doors.access_log import Entry, Journal
from gateway.doors.http.errors import error_response
from gateway.doors.sending import BoundedSending
from gateway.doors.speech import Speech
from gateway.fleet.health import health_report
from gateway.fleet.stages import Stages
from gateway.metrics import CONTENT_TYPE, Metrics, Refused, expose_links

log = logging.getLogger("gateway.http")

QUIET_PATHS = frozenset({"/health", "/metrics"})
"""Asked every few seconds by machines; neither logged nor counted."""


_CLIENT_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class EveryRequest:
    """Gives each request an id and a journal entry, and turns errors into responses."""

    def __init__(self, app: ASGIApp, journal: Journal) -> None:
        self._app = app
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        name = f"{scope['method']} {scope['path']}"
        with self._journal.entry("http", name, request_id) as entry:
            scope.setdefault("state", {})["entry"] = entry

            async def send_marked(message: Message) -> None:
                if message["type"] == "http.response.start":
                    entry.status = str(message["status"])
                    marks = [(b"x-request-id", request_id.encode())]
                    message = {**message, "headers": [*message["headers"], *marks]}
                await send(message)

            try:
                await self._app(scope, receive, send_marked)
            except AntiphonError as error:
                await _answer_error(error, entry, scope, receive, send_marked)
            except Exception:
                log.exception("request %s broke", request_id)
                mistake = Internal("the gateway made a mistake; its log has more")
                await _answer_error(mistake, entry, scope, receive, send_marked)


def http_app(
    speech: Speech, chat: ASGIApp, metrics: Metrics, journal: Journal, config: GatewayConfig
) -> ASGIApp:
    """The whole application; `chat` answers chat completions."""

    async def models(request: Request) -> Response:
        listed = {"object": "list", "data": [_model(speech.stages)]}
        return Response(msgspec.json.encode(listed), media_type="application/json")

    async def model(request: Request) -> Response:
        speech.check_model(request.path_params["name"])
        described = msgspec.json.encode(_model(speech.stages))
        return Response(described, media_type="application/json")

    async def health(request: Request) -> Response:
        report = health_report(speech.stages)
        if speech.closing:
            nothing = dict.fromkeys(report.outputs, False)
            reason = "the gateway is shutting down"
            report = replace(report, ready=False, reason=reason, outputs=nothing)
        # With ?output=text the status is that of this output alone.
        output = request.query_params.get("output", "")
        ready = report.outputs.get(output, False) if output else report.ready
        body = msgspec.json.encode(report)
        return Response(body, 200 if ready else 503, media_type="application/json")

    async def show_metrics(request: Request) -> Response:
        for stage in speech.stages:
            metrics.stage_ready.labels(stage.role).set(stage.ready)
        links = expose_links(await speech.stages.describe_now())
        return Response(metrics.expose() + links, headers={"content-type": CONTENT_TYPE})

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/", models),
            Route("/v1/models/{name:path}", model),
            Route("/health", health),
            Route("/metrics", show_metrics),
        ],
        middleware=[Middleware(EveryRequest, journal=journal)],
        exception_handlers={HTTPException: _routing_error},
    )
    stalled = partial(metrics.refuse, Refused.SEND_TIME)
    return BoundedSending(app, config.send_timeout_s, stalled)


async def _answer_error(
    error: AntiphonError, entry: Entry, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send an error if no response has started; otherwise the connection breaks off."""
    entry.fail(error)
    if not entry.status:
        await error_response(error)(scope, receive, send)


def _request_id(scope: Scope) -> str:
    """The client's own id of its request where it may stand in a log, else a new one."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _CLIENT_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


async def _routing_error(request: Request, error: Exception) -> Response:
    """404 and 405 in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    kind = NotFound if error.status_code == 404 else InvalidArgument
    response = error_response(kind(f"there is no {where}"), error.status_code)
    response.headers.update(error.headers or {})
    return response


def _model(stages: Stages) -> dict[str, object]:
    """OpenAI's model object, and the voices that `audio.voice` may name."""
    known = {"id": stages.model_name(), "object": "model", "created": 0, "owned_by": "antiphon"}
    return {**known, "voices": [v for each in stages.descriptions.values() for v in each.voices]}
