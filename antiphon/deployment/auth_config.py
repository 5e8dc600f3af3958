"""Alternatives to API keys for authenticating a caller: a trusted proxy or a JWT from an issuer."""

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
"""Only asymmetric algorithms are supported. With a shared secret, everyone who verifies tokens
could also create them.
"""

# Headers that clients, proxies or HTTP itself use for other purposes.
_OTHER_HEADERS = frozenset(
    {"authorization", "connection", "content-length", "content-type", "cookie", "forwarded", "host"}
    | {"origin", "te", "transfer-encoding", "upgrade", "user-agent", "x-forwarded-for"}
)


class TrustedProxyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A proxy that authenticates callers and passes their names in a header."""

    # The name of the header that contains the caller's name. Over gRPC, this is the metadata with
    # the same name. The proxy must remove this header from the requests that clients send.
    header: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$")]
    # The networks from which the proxy connects, such as 10.1.2.0/24. Forwarding headers are
    # ignored.
    networks: Annotated[tuple[Network, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` if the header or a network is invalid."""
        field = "gateway.auth.trusted_proxy"
        if self.header.lower() in _OTHER_HEADERS or self.header.lower().endswith("-bin"):
            raise InvalidArgument(
                f"{field}.header: {self.header} has another purpose; use a header that only the "
                "proxy sets, such as x-auth-user",
                field=f"{field}.header",
            )
        for network in self.networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise InvalidArgument(
                    f"{field}.networks: {told(network)} is not a valid network, such as "
                    f"10.1.2.0/24: {error}",
                    field=f"{field}.networks",
                ) from error


class JwtConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tokens that can be used instead of a key. The token's `sub` is the name of the caller.

    A token must contain `iss`, `aud`, `sub` and `exp`.
    """

    issuer: Annotated[str, msgspec.Meta(min_length=1)]
    audience: Annotated[str, msgspec.Meta(min_length=1)]
    # The file with the issuer's public keys as a JWKS. It must be a regular file of at most 256
    # KiB. When it has changed, it is read again, at most once every `keys_reload_s` seconds.
    jwks_file: Annotated[str, msgspec.Meta(min_length=1)]
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1)] = ("RS256", "ES256")
    # The maximum difference between the issuer's clock and the local clock in seconds. It applies
    # to `exp`, `nbf` and `iat`.
    leeway_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0


class IdentityLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits for each caller that has no key of its own. They have the same meaning as in the keys
    file.
    """

    concurrency: Most | None = None
    requests_per_minute: Most | None = None
    audio_seconds_per_minute: Most | None = None
    conversations: Most | None = None
    priority: Literal["high", "normal", "low"] = "normal"


class AuthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Credentials that are accepted in addition to the API keys in `gateway.keys_file`."""

    trusted_proxy: TrustedProxyConfig | None = None
    jwt: JwtConfig | None = None
    # The limits for each caller whose name comes from a proxy or a token.
    limits: IdentityLimits = IdentityLimits()
