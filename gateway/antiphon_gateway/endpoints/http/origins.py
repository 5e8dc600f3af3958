"""Determines which web pages may call this gateway. The same rule applies to CORS and WebSocket
handshakes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

ANY = "*"
_HOST = r"(\[[0-9a-f:.]+\]|[^/:\s]*)"
_ANY_PORT = r"(:[0-9]{1,5})?"


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
