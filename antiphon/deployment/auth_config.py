"""Who vouches for a caller in place of an API key: a trusted proxy, or the issuer of a JWT."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

import msgspec

from antiphon.errors import InvalidArgument, told

Most = Annotated[int, msgspec.Meta(ge=1)]
Network = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Asymmetric ones alone: with a shared secret who verifies tokens could make them."""

# Headers that clients, proxies or HTTP itself set for other ends.
_OTHER_HEADERS = frozenset(
    {"authorization", "connection", "content-length", "content-type", "cookie", "forwarded", "host"}
    | {"origin", "te", "transfer-encoding", "upgrade", "user-agent", "x-forwarded-for"}
)


class TrustedProxyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A proxy that authenticates callers and names them in a header of its own."""

    # Over gRPC the metadata of that name. The proxy must remove what clients send under it.
    header: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$")]
    # Networks of the proxy's connections, such as 10.1.2.0/24. No forwarding header is read.
    networks: Annotated[tuple[Network, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for a header or a network that cannot be."""
        field = "gateway.auth.trusted_proxy"
        if self.header.lower() in _OTHER_HEADERS or self.header.lower().endswith("-bin"):
            raise InvalidArgument(
                f"{field}.header: {self.header} has another purpose; name a header that the proxy "
                "alone sets, such as x-auth-user",
                field=f"{field}.header",
            )
        for network in self.networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise InvalidArgument(
                    f"{field}.networks: {told(network)} is no network such as 10.1.2.0/24: {error}",
                    field=f"{field}.networks",
                ) from error


class JwtConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tokens that stand for a key. The token's `sub` names the caller. `iss`, `aud`, `sub` and
    `exp` must be in it."""

    issuer: Annotated[str, msgspec.Meta(min_length=1)]
    audience: Annotated[str, msgspec.Meta(min_length=1)]
    # The issuer's public keys as a JWKS: a regular file of at most 256 KiB, read again when it has
    # changed, at most every `keys_reload_s`.
    jwks_file: Annotated[str, msgspec.Meta(min_length=1)]
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1)] = ("RS256", "ES256")
    # How far the issuer's clock may differ, for `exp`, `nbf` and `iat`.
    leeway_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0


class IdentityLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What each caller without a key of its own may take, as in the file of keys."""

    concurrency: Most | None = None
    requests_per_minute: Most | None = None
    audio_seconds_per_minute: Most | None = None
    conversations: Most | None = None
    priority: Literal["high", "normal", "low"] = "normal"


class AuthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may stand in for an API key, besides those of `gateway.keys_file`."""

    trusted_proxy: TrustedProxyConfig | None = None
    jwt: JwtConfig | None = None
    # Of each caller that a proxy or a token names.
    limits: IdentityLimits = IdentityLimits()
