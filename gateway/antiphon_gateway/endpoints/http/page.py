"""The web page at `/`, where users can talk to the model in a browser. It consists of static files
and doesn't load anything from other servers.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from antiphon_gateway.endpoints.access_log import RequestLog

FILES = Path(__file__).parents[2] / "page"

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    # Generated images are data URLs.
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    # The page can use the microphone, but no other devices.
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # Keeps browsers from combining files of a new version with older ones in their cache.
    "cache-control": "no-cache",
}


class PageFiles(StaticFiles):
    """Serves the files of the page, with headers that restrict what the page may do."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or 304 if the browser already has it. The request is logged at the DEBUG
        level.
        """
        response = await super().get_response(path, scope)
        entry: RequestLog = scope["state"]["entry"]
        entry.routine = True
        response.headers.update(HEADERS)
        return response


def page_routes() -> list[BaseRoute]:
    """Return the routes for `/` and for the files that the page uses."""
    files = PageFiles(directory=FILES)

    async def index(asked: Request) -> Response:
        return await files.get_response("index.html", asked.scope)

    return [Route("/", index), Mount("/page", files)]
