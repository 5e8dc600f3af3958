"""Reads the caller's credentials from an HTTP request or a WebSocket handshake."""

from __future__ import annotations

from functools import partial

from starlette.types import Scope

from antiphon_gateway.keys.credentials import Credentials, peer_address

REALTIME_PROTOCOL = "realtime"
KEY_PROTOCOL = "openai-insecure-api-key."
"""The prefix of the WebSocket subprotocol that contains an API key. Browsers can't set headers for
a WebSocket, so this is how OpenAI's API passes the key.
"""


def header_values(scope: Scope, name: str) -> list[str]:
    """Return all values of a header. The name must be in lower case."""
    wanted = name.encode("latin-1")
    return [value.decode("latin-1") for each, value in scope["headers"] if each == wanted]


def authorization_of(scope: Scope) -> str | None:
    """Return the `authorization` header, or an equivalent value from the subprotocols that are
    offered. Returns None if there is neither.
    """
    if headers := header_values(scope, "authorization"):
        return headers[-1]
    keys = offered_keys(scope)
    return f"Bearer {keys[0]}" if keys else None


def credentials_of(scope: Scope) -> Credentials:
    """Return the caller's credentials, given a request or a handshake."""
    client = scope.get("client")
    return Credentials(
        authorization_of(scope),
        peer_address(client[0]) if client else None,
        partial(header_values, scope),
    )


def offered_keys(scope: Scope) -> list[str]:
    """Return the API keys among the subprotocols that a WebSocket handshake offers."""
    offered = scope.get("subprotocols") or ()
    return [each.removeprefix(KEY_PROTOCOL) for each in offered if each.startswith(KEY_PROTOCOL)]


def protocol_of(scope: Scope) -> str | None:
    """Return the subprotocol to accept. For browsers, it has to be one of those that they have
    offered.
    """
    return REALTIME_PROTOCOL if REALTIME_PROTOCOL in (scope.get("subprotocols") or ()) else None
