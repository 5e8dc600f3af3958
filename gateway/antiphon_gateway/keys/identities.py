"""Identifies callers over HTTP, WebSockets and gRPC.

A caller is identified by a trusted proxy, by a token from a trusted issuer, or by an API key, in
this order. Proxies are recognized by the address from which they connect. Names from different
sources can't collide, because those from a proxy begin with `proxy:`, those from tokens begin with
`jwt:`, and names of keys don't contain a colon.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from types import ModuleType

import msgspec

from antiphon.deployment.auth_config import TrustedProxyConfig
from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import InvalidArgument, Unauthenticated
from antiphon_gateway.keys.credentials import Credentials
from antiphon_gateway.keys.key_file import KeyLimits
from antiphon_gateway.keys.key_use import KeyUse
from antiphon_gateway.keys.keyring import EndConversation, Keyring, bearer
from antiphon_gateway.keys.shared_use import SharedUses
from antiphon_gateway.keys.watched_file import WatchedFile

MAX_NAME_CHARS = 256
MAX_NAMED = 10_000
"""The maximum number of callers whose use is counted. Beyond this limit, the caller that has been
inactive for the longest is forgotten.
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller. Its use is counted in `key`. `expires_s` is when its token expires, in seconds
    since 1970, or None if it has no token.
    """

    key: KeyUse
    authorization: str | None = None
    expires_s: float | None = None


class Identities:
    """Identifies the callers of requests. If other gateways share their limits, `shared` contains
    the use of all callers. Raises `InvalidArgument` if the files are invalid.
    """

    def __init__(
        self,
        config: GatewayConfig,
        refused: Callable[[str], None] = lambda _: None,
        *,
        shared: SharedUses | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._keyring = Keyring(config, refused, shared=shared, clock=clock, now=now)
        self._has_keys = bool(config.keys_file)
        self._open = not config.authenticates
        self._refused = refused
        self._shared = shared
        self._now = now
        self._limits = msgspec.convert(msgspec.to_builtins(config.auth.limits), KeyLimits)
        self._named: OrderedDict[str, KeyUse] = OrderedDict()
        proxy = config.auth.trusted_proxy
        self._proxy = None if proxy is None else _TrustedProxy(proxy)
        self._jwt = config.auth.jwt
        if self._jwt is not None:
            self._tokens = _tokens_module()
            self._jwks = WatchedFile(
                Path(self._jwt.jwks_file),
                partial(self._tokens.read_jwks, algorithms=self._jwt.algorithms),
                config.keys_reload_s,
                clock,
                "keys of the tokens' issuer",
            )

    async def identify(self, credentials: Credentials, *, counted: bool = True) -> Identity:
        """Return the caller.

        Raises `Unauthenticated` if the caller can't be identified, and `InvalidArgument` if a
        proxy's header occurs more than once. If `counted` is true, a request without a caller is
        counted as refused.
        """
        if self._open:
            return Identity(await self._keyring.key_of(None))
        try:
            if self._proxy is not None and (name := self._proxy.caller(credentials)) is not None:
                return Identity(self._use_of(f"proxy:{name}"))
            token = bearer(credentials.authorization)
            if self._jwt is not None and token is not None and token.count(".") == 2:
                await self._jwks.look()
                verified = self._tokens.verified(token, self._jwks.content, self._jwt)
                name = checked_name(verified.subject, "the token's sub")
                return Identity(self._use_of(f"jwt:{name}"), expires_s=verified.expires_s)
        except Unauthenticated:
            if counted:
                self._refused("invalid_key")
            raise
        if not self._has_keys:
            if counted:
                self._refused("no_key" if token is None else "invalid_key")
            raise Unauthenticated(
                "the token is missing; send the header 'authorization: Bearer TOKEN'"
                if self._jwt is not None
                else (
                    "the caller is unknown; send requests through the proxy that authenticates "
                    "callers"
                )
            )
        authorization = credentials.authorization
        return Identity(await self._keyring.key_of(authorization, counted=counted), authorization)

    @contextmanager
    def conversation(self, identity: Identity, end: EndConversation) -> Iterator[None]:
        """Return a context manager that covers one conversation.

        `end` is called when the key becomes invalid or the token expires. Raises `KeyLimitReached`
        if there are too many conversations.
        """
        if identity.authorization is not None:
            with self._keyring.conversation(identity.key, identity.authorization, end):
                yield
            return
        with identity.key.conversation():
            if identity.expires_s is None:
                yield
                return
            expiry = asyncio.get_running_loop().call_later(
                max(0.0, identity.expires_s - self._now()),
                end,
                Unauthenticated("the token has expired"),
            )
            try:
                yield
            finally:
                expiry.cancel()

    def _use_of(self, name: str) -> KeyUse:
        """Return the use of a caller by name."""
        use = self._named.get(name)
        if use is None:
            shared = None if self._shared is None else self._shared.of(name)
            use = KeyUse(name, self._limits, self._refused, shared=shared)
            self._named[name] = use
        self._named.move_to_end(name)
        while len(self._named) > MAX_NAMED:
            idle = (each for each, counts in self._named.items() if not counts.in_use)
            del self._named[next(idle)]
        return use


class _TrustedProxy:
    """Reads the caller's name from a header set by a trusted proxy."""

    def __init__(self, config: TrustedProxyConfig) -> None:
        self._header = config.header.lower()
        self._networks = [ip_network(each) for each in config.networks]

    def caller(self, credentials: Credentials) -> str | None:
        """Return the name in the header, or None if the header is missing.

        If the header comes from any other address, this is an attempt at impersonation, and
        `Unauthenticated` is raised.
        """
        given = credentials.values(self._header)
        if not given:
            return None
        peer = credentials.peer
        if peer is None or not any(peer in network for network in self._networks):
            raise Unauthenticated(
                f"{self._header}: is only accepted on connections from "
                "gateway.auth.trusted_proxy.networks; leave it out"
            )
        if len(given) > 1:
            raise InvalidArgument(
                f"{self._header}: must be sent exactly once, got {len(given)} header fields",
                field=self._header,
            )
        return checked_name(given[0], self._header)


def checked_name(name: str, what: str) -> str:
    """Return the name if it is safe to write to logs. Otherwise, raises `Unauthenticated`."""
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        raise Unauthenticated(
            f"{what}: must have 1 to {MAX_NAME_CHARS} printable characters, without leading or "
            "trailing spaces"
        )
    return name


def _tokens_module() -> ModuleType:
    """Return the module that verifies tokens. It requires an additional package. Raises
    `InvalidArgument` if that package isn't installed.
    """
    try:
        from antiphon_gateway.keys import tokens
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"gateway.auth.jwt: requires the package {error.name}, which is not installed; "
            "install antiphon[jwt]",
            field="gateway.auth.jwt",
        ) from error
    return tokens
