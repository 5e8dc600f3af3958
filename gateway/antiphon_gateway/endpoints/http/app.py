"""The HTTP application, including the handling that is common to all requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, InvalidArgument, NotFound
from antiphon.tracing.span import given_traceparent
from antiphon_gateway.endpoints.access_log import AccessLog, RequestLog
from antiphon_gateway.endpoints.ending import request
from antiphon_gateway.endpoints.http.authorization import credentials_of
from antiphon_gateway.endpoints.http.errors import error_response
from antiphon_gateway.endpoints.http.origins import FORBIDDEN, AllowedOrigins, ForeignOrigin
from antiphon_gateway.endpoints.http.paths import PlainPaths, wrong_request
from antiphon_gateway.endpoints.http.request_head import CheckedHeads
from antiphon_gateway.endpoints.http.response_send import BoundedSending
from antiphon_gateway.keys.identities import Identities
from antiphon_gateway.metrics import CONTENT_TYPE, Metrics, Refused

QUIET_PATHS = frozenset({"/health", "/metrics"})
"""Paths that are polled every few seconds. Requests for them are neither logged nor counted."""
KEYED_PATHS = "/v1/"
"""The prefix of the paths that require an API key if there are any keys. Web pages and the API
documentation don't require one.
"""


_CLIENT_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class EveryRequest:
    """Middleware that gives each request an ID and an access log entry. It also converts errors to
    responses.
    """

    def __init__(
        self, app: ASGIApp, access_log: AccessLog, identities: Identities, origins: AllowedOrigins
    ) -> None:
        self._app = app
        self._origins = origins
        self._access_log = access_log
        self._identities = identities

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] in ("http", "websocket"):
            given = dict(scope["headers"]).get(b"traceparent", b"")
            given_traceparent.set(given.decode("latin-1"))
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return

        async def refuse(entry: RequestLog, error: AntiphonError) -> None:
            """Send an error response. If a response has already been started, close the connection
            instead.
            """
            if not entry.status:
                status = FORBIDDEN if isinstance(error, ForeignOrigin) else 0
                await error_response(error, status)(scope, receive, send)

        name = f"{scope['method']} {scope['path']}"
        async with request(self._access_log, "http", name, refuse, _given_id(scope)) as entry:
            state = scope["state"]
            state["entry"] = state["send"].entry = entry
            self._origins.check_request(scope["method"], Headers(scope=scope))
            if scope["path"].startswith(KEYED_PATHS):
                entry.key = (await self._identities.identify(credentials_of(scope))).key
            await self._app(scope, receive, send)


def http_app(
    routes: Sequence[BaseRoute],
    origins: AllowedOrigins,
    identities: Identities,
    access_log: AccessLog,
    config: GatewayConfig,
    metrics: Metrics,
) -> ASGIApp:
    """Return the complete application."""
    every_request = Middleware(
        EveryRequest, access_log=access_log, identities=identities, origins=origins
    )
    app = Starlette(
        routes=routes,
        middleware=[Middleware(PlainPaths), *origins.middleware(), every_request],
        exception_handlers={HTTPException: _routing_error},
    )
    app.router.redirect_slashes = False
    stalled = partial(metrics.refuse, Refused.SEND_TIME)
    sending = BoundedSending(app, config.connections.send_timeout_s, stalled)
    return CheckedHeads(sending, config, metrics.refuse)


def metrics_app(metrics: Metrics) -> ASGIApp:
    """Return an application that serves only metrics. It is used if metrics have a separate
    address.
    """
    app = Starlette(
        routes=[metrics_route(metrics)],
        middleware=[Middleware(PlainPaths)],
        exception_handlers={HTTPException: _routing_error},
    )
    app.router.redirect_slashes = False
    return app


def metrics_route(metrics: Metrics) -> Route:
    """Return the route for metrics."""

    async def show(_: Request) -> Response:
        return Response(metrics.expose(), headers={"content-type": CONTENT_TYPE})

    return Route("/metrics", show)


def moved_metrics_route() -> Route:
    """Return a route that refuses to serve metrics, because they have a separate address."""
    message = (
        "/metrics: the metrics are served at the address in gateway.metrics_listen; with several "
        "gateways, `antiphon serve` prints the address of each"
    )

    async def refuse(_: Request) -> Response:
        return error_response(NotFound(message))

    return Route("/metrics", refuse)


def _given_id(scope: Scope) -> str:
    """Return the request ID chosen by the client. If it isn't safe to log, returns an
    empty string.
    """
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _CLIENT_ID.fullmatch(given) else ""


async def _routing_error(asked: Request, error: Exception) -> Response:
    """Return a 404 or 405 response in OpenAI's format."""
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    allowed = headers.get("Allow", "")
    message = wrong_request(asked.method, asked.url.path, asked.app.routes, allowed)
    kind = NotFound if error.status_code == 404 else InvalidArgument
    response = error_response(kind(message), error.status_code)
    response.headers.update(headers)
    return response
