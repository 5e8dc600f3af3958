"""The page at `/`: talk to what is served, in a browser. Static files, nothing from elsewhere."""

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
    # Its microphone and nothing else.
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # A newer gateway's files must not meet those of an older one in a browser's cache.
    "cache-control": "no-cache",
}


class PageFiles(StaticFiles):
    """The page's files, with what a browser may do with them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One file, or 304 where the browser has it. The access log has it for debugging alone."""
        response = await super().get_response(path, scope)
        entry: RequestLog = scope["state"]["entry"]
        entry.routine = True
        response.headers.update(HEADERS)
        return response


def page_routes() -> list[BaseRoute]:
    """`/` and the files that it names."""
    files = PageFiles(directory=FILES)

    async def index(asked: Request) -> Response:
        return await files.get_response("index.html", asked.scope)

    return [Route("/", index), Mount("/page", files)]
