"""Handles request paths that don't exist or contain extra slashes.

Extra slashes are removed without a redirect, because some clients drop the body of a POST request
when they are redirected. In addition, behind a proxy that terminates TLS, the redirect would
contain an http:// address.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

LONGEST_COMPARED = 100
"""The maximum length of a path for which a similar path is suggested, in characters."""


class PlainPaths:
    """Middleware that removes trailing slashes from a path and extra slashes at its beginning."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or handshake."""
        if scope["type"] in ("http", "websocket"):
            scope = {**scope, "path": "/" + scope["path"].strip("/")}
        await self._app(scope, receive, send)


def wrong_request(method: str, path: str, routes: Iterable[BaseRoute], allowed: str) -> str:
    """Return an error message with a hint. `allowed` lists the methods of the path, if it
    exists.
    """
    refused = f"{method} {path} does not exist"
    if allowed:
        methods = [each for each in allowed.split(", ") if each != "HEAD"]
        return f"{refused}; use {' or '.join(sorted(methods))}"
    served = list(routes)
    if any(isinstance(each, WebSocketRoute) and each.path == path for each in served):
        return f"{refused}; {path} is a WebSocket endpoint: connect with ws:// or wss://"
    if meant := _similar(path, [each.path for each in served if isinstance(each, Route)]):
        return f"{refused}; did you mean {meant}?"
    return f"{refused}; for a list of endpoints, see /docs"


def _similar(path: str, known: Iterable[str]) -> str:
    """Return the path that was probably meant. It has a different prefix, or corrects a typo. If
    there is none, returns an empty string.
    """
    if not 1 < len(path) <= LONGEST_COMPARED:
        return ""
    candidates = [each for each in known if each != "/" and "{" not in each]
    for each in candidates:
        if each.endswith(path) or path.endswith(each):
            return each
    return next(iter(difflib.get_close_matches(path, candidates, 1, 0.8)), "")
