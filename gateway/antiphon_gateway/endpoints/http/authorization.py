"""Read the caller's credentials from an HTTP request or a WebSocket handshake."""

from __future__ import annotations

from functools import partial

from starlette.types import Scope

from antiphon_gateway.keys.credentials import Credentials, peer_address

REALTIME_PROTOCOL = "realtime"
KEY_PROTOCOL = "openai-insecure-api-key."
"""A browser sets no headers for a WebSocket; as OpenAI has it, the key then follows this, as one of
the protocols that the page offers."""


def header_values(scope: Scope, name: str) -> list[str]:
    """All values of a header, its name in lower case."""
    wanted = name.encode("latin-1")
    return [value.decode("latin-1") for each, value in scope["headers"] if each == wanted]


def authorization_of(scope: Scope) -> str | None:
    """The header `authorization`, or one made of the protocols; None where there is neither."""
    if headers := header_values(scope, "authorization"):
        return headers[-1]
    keys = offered_keys(scope)
    return f"Bearer {keys[0]}" if keys else None


def credentials_of(scope: Scope) -> Credentials:
    """Return the caller's credentials of a request or a handshake."""
    client = scope.get("client")
    return Credentials(
        authorization_of(scope),
        peer_address(client[0]) if client else None,
        partial(header_values, scope),
    )


def offered_keys(scope: Scope) -> list[str]:
    """The API keys among the protocols that a WebSocket's handshake offers."""
    offered = scope.get("subprotocols") or ()
    return [each.removeprefix(KEY_PROTOCOL) for each in offered if each.startswith(KEY_PROTOCOL)]


def protocol_of(scope: Scope) -> str | None:
    """The protocol to agree on: browsers insist on one of those that they offered."""
    return REALTIME_PROTOCOL if REALTIME_PROTOCOL in (scope.get("subprotocols") or ()) else None
