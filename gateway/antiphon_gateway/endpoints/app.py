"""The HTTP endpoint: routes, and what every request goes through."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, InvalidArgument, NotFound, Unauthenticated
from antiphon.tracing.span import given_traceparent
from antiphon.version import VERSION
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.conversations.conversations import Conversations
from antiphon_gateway.endpoints.access_log import AccessLog, RequestLog
from antiphon_gateway.endpoints.conversation_endpoint import ConversationEndpoint
from antiphon_gateway.endpoints.ending import request
from antiphon_gateway.endpoints.http.authorization import credentials_of
from antiphon_gateway.endpoints.http.errors import error_response
from antiphon_gateway.endpoints.http.origins import AllowedOrigins
from antiphon_gateway.endpoints.http.page import page_routes
from antiphon_gateway.endpoints.http.paths import PlainPaths
from antiphon_gateway.endpoints.http.reference_page import HEADERS as PAGE_HEADERS
from antiphon_gateway.endpoints.http.reference_page import reference_page
from antiphon_gateway.endpoints.http.request_head import CheckedHeads
from antiphon_gateway.endpoints.http.wrong_path import wrong_request
from antiphon_gateway.endpoints.openai.endpoint_app import EndpointApp
from antiphon_gateway.endpoints.openai.listings import (
    VersionCard,
    model_card,
    model_list,
    voice_list,
)
from antiphon_gateway.endpoints.openai.openapi import EndpointMessages, OpenApi
from antiphon_gateway.endpoints.realtime.endpoint import PATH as REALTIME
from antiphon_gateway.endpoints.realtime.endpoint import RealtimeEndpoint
from antiphon_gateway.endpoints.sending import BoundedSending
from antiphon_gateway.fleet.health import health_report
from antiphon_gateway.keys.identities import Identities
from antiphon_gateway.metrics import CONTENT_TYPE, Metrics, Refused

QUIET_PATHS = frozenset({"/health", "/metrics"})
"""Asked every few seconds by machines; neither logged nor counted."""
KEYED_PATHS = "/v1/"
"""What needs a key, where keys are needed; pages and documents are for everybody."""


_CLIENT_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class EveryRequest:
    """Gives each request an id and an entry in the access log, and turns errors into responses."""

    def __init__(self, app: ASGIApp, access_log: AccessLog, identities: Identities) -> None:
        self._app = app
        self._access_log = access_log
        self._identities = identities

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] in ("http", "websocket"):
            given = dict(scope["headers"]).get(b"traceparent", b"")
            given_traceparent.set(given.decode("latin-1"))
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = str(message["status"])
                marks = [(b"x-request-id", entry.request_id.encode())]
                if ignored := entry.ignored_fields:
                    marks.append((b"x-antiphon-ignored", ", ".join(ignored).encode()))
                message = {**message, "headers": [*message["headers"], *marks]}
            await send(message)

        async def refuse(entry: RequestLog, error: AntiphonError) -> None:
            """Send an error if no response has started; otherwise the connection breaks off."""
            if not entry.status:
                await error_response(error)(scope, receive, send_marked)

        name = f"{scope['method']} {scope['path']}"
        async with request(self._access_log, "http", name, refuse, _given_id(scope)) as entry:
            if scope["path"].startswith(KEYED_PATHS):
                entry.key = (await self._identities.identify(credentials_of(scope))).key
            scope.setdefault("state", {})["entry"] = entry
            await self._app(scope, receive, send_marked)


def http_app(
    calls: Calls,
    conversations: Conversations,
    apps: Mapping[str, EndpointApp],
    metrics: Metrics,
    access_log: AccessLog,
    config: GatewayConfig,
    messages: Mapping[str, EndpointMessages],
    identities: Identities,
) -> ASGIApp:
    """The whole application; `apps` answer at the endpoints, `messages` are what those read and
    write, both by path."""
    fleet = calls.fleet

    created = int(time.time())

    async def models(_: Request) -> Response:
        return _json(model_list(fleet, created))

    async def model(asked: Request) -> Response:
        name = asked.path_params["name"]
        calls.check_model(name)
        return _json(model_card(fleet, created, name))

    async def voices(asked: Request) -> Response:
        calls.check_model(asked.query_params.get("model", ""))
        return _json(voice_list(fleet))

    open_api = OpenApi(messages, config.unknown_fields)

    def document() -> bytes:
        told = [stage for stage in fleet if stage.told is not None]
        return open_api.document(fleet.accepted().sampling_fields if told else ())

    async def openapi(_: Request) -> Response:
        return Response(document(), media_type="application/json")

    async def docs(_: Request) -> Response:
        return Response(reference_page(document()), 200, PAGE_HEADERS, media_type="text/html")

    async def version(_: Request) -> Response:
        return _json(VersionCard(VERSION))

    async def knows_a_key(asked: Request) -> bool:
        try:
            await identities.identify(credentials_of(asked.scope), counted=False)
        except (Unauthenticated, InvalidArgument):
            return False
        return True

    async def health(asked: Request) -> Response:
        report = health_report(fleet, detailed=await knows_a_key(asked))
        if calls.closing:
            nothing = dict.fromkeys(report.outputs, False)
            reason = "the gateway is shutting down"
            report = replace(report, ready=False, reason=reason, outputs=nothing)
        # With ?output=text the status is that of this output alone.
        output = asked.query_params.get("output", "")
        ready = report.outputs.get(output, False) if output else report.ready
        return _json(report, 200 if ready else 503)

    origins = AllowedOrigins(config.cors_origins)
    realtime = RealtimeEndpoint(
        ConversationEndpoint("realtime", conversations, config, access_log, metrics),
        identities,
        origins,
    )
    every_request = Middleware(EveryRequest, access_log=access_log, identities=identities)
    app = Starlette(
        routes=[
            *page_routes(),
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in apps.items()),
            WebSocketRoute(REALTIME, realtime.serve),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/audio/voices", voices),
            Route("/version", version),
            Route("/openapi.json", openapi),
            Route("/docs", docs),
            Route("/health", health),
            *([] if config.metrics_listen else [metrics_route(metrics)]),
        ],
        middleware=[Middleware(PlainPaths), *origins.middleware(), every_request],
        exception_handlers={HTTPException: _routing_error},
    )
    app.router.redirect_slashes = False
    stalled = partial(metrics.refuse, Refused.SEND_TIME)
    sending = BoundedSending(app, config.send_timeout_s, stalled)
    return CheckedHeads(sending, config, metrics.refuse)


def metrics_app(metrics: Metrics) -> ASGIApp:
    """The series alone, for an address of their own."""
    app = Starlette(
        routes=[metrics_route(metrics)],
        middleware=[Middleware(PlainPaths)],
        exception_handlers={HTTPException: _routing_error},
    )
    app.router.redirect_slashes = False
    return app


def metrics_route(metrics: Metrics) -> Route:
    """GET of the series."""

    async def show(_: Request) -> Response:
        return Response(metrics.expose(), headers={"content-type": CONTENT_TYPE})

    return Route("/metrics", show)


def _json(answer: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _given_id(scope: Scope) -> str:
    """The client's own id of its request where it may stand in a log, else nothing."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _CLIENT_ID.fullmatch(given) else ""


async def _routing_error(asked: Request, error: Exception) -> Response:
    """404 and 405 in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    allowed = headers.get("Allow", "")
    message = wrong_request(asked.method, asked.url.path, asked.app.routes, allowed)
    kind = NotFound if error.status_code == 404 else InvalidArgument
    response = error_response(kind(message), error.status_code)
    response.headers.update(headers)
    return response
