"""Rejects request heads that are ambiguous or weren't meant for this gateway.

If the host name of a web page resolves to this gateway's address (DNS rebinding), the page can send
requests that the browser considers same-origin. The `Host` header of such requests contains the
host name of the page. If no API key is required, the only values accepted in `Host` are therefore
IP addresses, localhost and configured names. This is true for both HTTP and WebSocket.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import InvalidArgument, told
from antiphon_gateway.endpoints.http.authorization import offered_keys
from antiphon_gateway.endpoints.http.errors import error_response
from antiphon_gateway.metrics import Refused

ANY = "*"
MISDIRECTED = 421
LOCALHOST = "localhost"
_PORTS = {b"http": "80", b"https": "443"}


class MisdirectedRequest(InvalidArgument):
    """The request was meant for a different host."""


class CheckedHeads:
    """Middleware that passes on only those requests that have a single, acceptable `Host` and at
    most one API key.
    """

    def __init__(
        self, app: ASGIApp, config: GatewayConfig, refused: Callable[[Refused], None]
    ) -> None:
        self._app = app
        self._refused = refused
        names = {each.lower().removesuffix(".") for each in config.host_names}
        self._checks_host = not config.authenticates and ANY not in names
        domains = {each.removeprefix(ANY) for each in names if each.startswith(f"{ANY}.")}
        self._names = frozenset(names)
        self._domains = (f".{LOCALHOST}", *sorted(domains))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request or handshake. If it isn't acceptable, respond with 400 or 421
        instead.
        """
        if scope["type"] in ("http", "websocket"):
            try:
                self._check(scope)
            except InvalidArgument as error:
                status = 400
                if isinstance(error, MisdirectedRequest):
                    status = MISDIRECTED
                    self._refused(Refused.HOST)
                response = error_response(error, status)
                if scope["type"] == "http":
                    await response(scope, receive, send)
                else:
                    await WebSocket(scope, receive, send).send_denial_response(response)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raise `InvalidArgument` if the head is ambiguous, and `MisdirectedRequest` if it was
        meant for a different host.
        """
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        keys = sum(name == b"authorization" for name, _ in scope["headers"])
        if keys + len(offered_keys(scope)) > 1:
            raise InvalidArgument(
                "authorization: more than one API key was sent; send only one",
                field="authorization",
            )
        if not hosts and scope.get("http_version") == "1.0":
            # HTTP/1.0 doesn't require a host, but browsers don't use it.
            return
        if len(hosts) != 1:
            raise InvalidArgument(
                f"host: must be sent exactly once, got {len(hosts)} header fields", field="host"
            )
        host = hosts[0].decode("latin-1")
        if self._checks_host and not self._is_own(host):
            raise MisdirectedRequest(
                f"host: {told(host)} is neither an IP address nor listed in gateway.host_names; "
                "if it is a name of this gateway, add it there",
                field="host",
            )

    def _is_own(self, host: str) -> bool:
        name = _without_port(host)
        if _is_address(name.strip("[]")):
            return True
        name = name.lower().removesuffix(".")
        return name == LOCALHOST or name in self._names or name.endswith(self._domains)


def origin_form(target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the path and the query of a target that may also contain a host (RFC 9112, section
    3.2.2).

    Raises `InvalidArgument` if the host in the target differs from the `Host` header. A server has
    to use the former, but proxies and caches may use the latter. The comparison ignores case and a
    trailing dot, and a missing port means the scheme's default port. Requests that don't have
    exactly one `Host` header are rejected by `CheckedHeads`.
    """
    scheme, separator, rest = target.partition(b"://")
    if target.startswith(b"/") or not separator:
        return target
    port = _PORTS.get(scheme.lower())
    if port is None:
        raise InvalidArgument("host: the request target must be an http or https URL", field="host")
    authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) == 1 and _host_and_port(authority, port) != _host_and_port(hosts[0], port):
        raise InvalidArgument(
            f"host: {told(hosts[0].decode('latin-1'))} differs from the host of the request "
            f"target, {told(authority.decode('latin-1'))}; use the same host in both",
            field="host",
        )
    path = rest[len(authority) :]
    return path if path.startswith(b"/") else b"/" + path


@lru_cache(maxsize=256)
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _host_and_port(authority: bytes, default_port: str) -> tuple[str, str]:
    """Normalize the host in a target or a `Host` header so that it can be compared."""
    text = authority.decode("latin-1")
    host = _without_port(text)
    port = text[len(host) + 1 :] or default_port
    return host.lower().removesuffix("."), port.lstrip("0")


def _without_port(host: str) -> str:
    """Return the name or the address in a `Host` header. The brackets of an IPv6 address are
    kept.
    """
    name, colon, port = host.rpartition(":")
    return name if colon and (port.isdigit() or not port) and not host.endswith("]") else host
