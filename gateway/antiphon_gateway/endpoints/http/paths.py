"""Serve paths with surplus slashes without a redirect.

A redirect would lose the body of some clients' POST requests. Behind a proxy that terminates TLS,
it would also name an http:// address.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class PlainPaths:
    """Removes slashes at the end of a path, and surplus ones at its beginning."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request or handshake on."""
        if scope["type"] in ("http", "websocket"):
            scope = {**scope, "path": "/" + scope["path"].strip("/")}
        await self._app(scope, receive, send)
