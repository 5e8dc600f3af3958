"""Serves paths that contain additional slashes, without a redirect.

With a redirect, some clients would lose the body of POST requests. If there is a proxy that
terminates TLS, the redirect would also contain an http:// address.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class PlainPaths:
    """Removes slashes from the end of a path, and additional slashes from its beginning."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request or handshake and pass it on."""
        if scope["type"] in ("http", "websocket"):
            scope = {**scope, "path": "/" + scope["path"].strip("/")}
        await self._app(scope, receive, send)
