"""Determines which web pages may call this gateway. The same rule applies to CORS, WebSocket
handshakes and HTTP requests.

Before most requests to another origin, a browser asks the server by sending a preflight. Without
one, it sends WebSocket handshakes, and requests that an HTML form could send as well. The page
can't read the response to the latter, but the gateway would do the work. Such requests are
therefore rejected, unless they contain an API key, which requires a preflight. Other kinds of
credentials, such as those of Basic authentication, are added by browsers themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from antiphon.errors import InvalidArgument, told

ANY = "*"
FORBIDDEN = 403
_HOST = r"(\[[0-9a-f:.]+\]|[^/:\s]*)"
_ANY_PORT = r"(:[0-9]{1,5})?"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM_TYPES = frozenset(
    {"", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain"}
)
"""The content types that a browser sends to another origin without a preflight (Fetch, section
2.2.2, CORS-safelisted request-header).
"""


class ForeignOrigin(InvalidArgument):
    """The request comes from a web page whose origin isn't allowed."""


class AllowedOrigins:
    """The origins in `gateway.cors_origins`."""

    def __init__(self, configured: Sequence[str]) -> None:
        self._any = ANY in configured
        self._pattern = "(?i:" + "|".join(_pattern_of(each) for each in configured) + ")"
        self._none = not configured
        self._allowed = re.compile(self._pattern)

    def allows(self, origin: str) -> bool:
        """Return whether a page with this origin may call the gateway."""
        return self._any or (not self._none and self._allowed.fullmatch(origin) is not None)

    def check(self, headers: Headers) -> None:
        """Raise `ForeignOrigin` if the headers are from a page that may not call the gateway."""
        origin, host = headers.get("origin"), headers.get("host", "")
        own = origin in (f"http://{host}", f"https://{host}")
        if origin is not None and not own and not self.allows(origin):
            raise ForeignOrigin(
                f"the origin {told(origin)} is not allowed to use this gateway; add it to "
                "gateway.cors_origins"
            )

    def check_request(self, method: str, headers: Headers) -> None:
        """Raise `ForeignOrigin` if a page that may not call the gateway could have sent this
        request without a preflight.
        """
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        keyed = headers.get("authorization", "").lower().startswith("bearer ")
        asked_first = keyed or kind not in _FORM_TYPES
        if method not in _SAFE_METHODS and not asked_first:
            self.check(headers)

    def middleware(self) -> list[Middleware]:
        """Return the CORS middleware for the allowed origins, or an empty list if there are
        none.
        """
        if self._none:
            return []
        return [
            Middleware(
                CORSMiddleware,
                allow_origins=[ANY] if self._any else [],
                allow_origin_regex=self._pattern,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                allow_private_network=True,
                expose_headers=[
                    "x-request-id",
                    "x-should-retry",
                    "retry-after",
                    "x-antiphon-ignored",
                ],
            )
        ]


def _pattern_of(origin: str) -> str:
    """Return the regular expression for one of the configured origins."""
    scheme, separator, authority = origin.partition("://")
    host, any_port = authority.removesuffix(":*"), authority.endswith(":*")
    if host == ANY:
        host_pattern = _HOST
    elif host.startswith("*."):
        host_pattern = rf"[^/:\s]+{re.escape(host[1:])}"
    else:
        host_pattern = re.escape(host)
    return re.escape(scheme + separator) + host_pattern + (_ANY_PORT if any_port else "")
