"""Verifies JWTs from one issuer, using the issuer's public keys. The cryptography is done by PyJWT.

Only the configuration determines what is accepted. It contains the list of algorithms, and the name
of the file with the keys. A token can't supply its own key, because `jku`, `x5u` and `jwk` are
never read. The length of a token is checked before it is parsed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import jwt
import msgspec

from antiphon.deployment.auth_config import Algorithm, JwtConfig
from antiphon.errors import InvalidArgument, Unauthenticated, told
from antiphon_gateway.regular_file import read_regular

FIELD = "gateway.auth.jwt.jwks_file"
MAX_FILE_BYTES = 256 << 10
MAX_KEYS = 100
MAX_TOKEN_CHARS = 8192
MIN_RSA_BITS = 2048
"""The minimum key size required by RFC 7518, section 3.3."""
MAX_RSA_BITS = 16_384
"""The maximum key size that OpenSSL supports for verification."""
LAST_S = 1 << 40
"""A time that no clock reaches but to which every timer can be set."""
_REQUIRED = ["exp", "iss", "aud", "sub"]
_ALGORITHMS = get_args(Algorithm)
_CURVES: Mapping[str, tuple[str, ...]] = {
    "RSA": (),
    "EC": ("P-256", "P-384", "P-521"),
    "OKP": ("Ed25519", "Ed448"),
}
"""Maps types of public keys to curves."""

_log = logging.getLogger(__name__)


class _Jwks(msgspec.Struct, frozen=True):
    keys: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The caller named in a token. The expiry time is in seconds since 1970 and includes the
    leeway.
    """

    subject: str
    expires_s: float


@dataclass(frozen=True, slots=True)
class IssuerKeys:
    """The issuer's public keys by key ID and algorithm. If there is only one key, its ID can be
    None.
    """

    by_id: Mapping[str | None, Mapping[str, jwt.PyJWK]]

    def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        """Return the key that a token names. If the token doesn't name one, the only key is
        returned.

        Raises `Unauthenticated` if the ID is unknown or missing, or if the key is for different
        algorithms.
        """
        if key_id is not None:
            named = self.by_id.get(key_id)
        else:
            named = next(iter(self.by_id.values())) if len(self.by_id) == 1 else None
        if named is None:
            what = (
                "no key"
                if key_id is None
                else (f"the key {told(key_id)}, which the issuer doesn't have")
            )
            raise Unauthenticated(f"the token specifies {what}")
        if algorithm not in named:
            raise Unauthenticated("the algorithm of the token differs from that of its key")
        return named[algorithm]


def read_jwks(path: Path, algorithms: Sequence[str]) -> IssuerKeys:
    """Return the signing keys in the file, parsed for each algorithm with which they can be used.

    Symmetric keys and keys with an unknown type, algorithm or curve are skipped with a warning (RFC
    7517, section 5). Raises `InvalidArgument` if the file or any other signing key is invalid, or
    if there is no usable key.
    """
    content = read_regular(path, most_bytes=MAX_FILE_BYTES, field=FIELD)
    try:
        keys = msgspec.json.decode(content, type=_Jwks).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{FIELD}: {path}: {error}", field=FIELD) from error
    signing = tuple(key for key in keys if key.get("use", "sig") == "sig")
    if not signing or len(keys) > MAX_KEYS:
        raise InvalidArgument(
            f"{FIELD}: {path}: has {len(signing)} signature keys (of {len(keys)} keys); the "
            f"number must be from 1 to {MAX_KEYS}",
            field=FIELD,
        )
    skipped, known = [], []
    for number, key in enumerate(signing):
        where = f"keys[{number}]"
        if (reason := _unknown(key)) is None:
            known.append((f"{FIELD}: {path}: {where}", key))
        else:
            skipped.append(f"{where} is skipped: {reason}")
    if not known:
        raise InvalidArgument(
            f"{FIELD}: {path}: has no usable key; {'; '.join(skipped)}; add a public key of "
            "type RSA, EC or OKP",
            field=FIELD,
        )
    by_id: dict[str | None, Mapping[str, jwt.PyJWK]] = {}
    for where, key in known:
        key_id = key.get("kid")
        if not isinstance(key_id, str) and (key_id is not None or len(known) > 1):
            raise InvalidArgument(f"{where}: must have a `kid` that is a string", field=FIELD)
        if key_id in by_id:
            raise InvalidArgument(f"{where}: must have a unique `kid`", field=FIELD)
        by_id[key_id] = _parsed(key, algorithms, where)
    for each in skipped:
        _log.warning("%s: %s: %s", FIELD, path, each)
    return IssuerKeys(by_id)


def _unknown(key: dict[str, Any]) -> str | None:
    """Return why this kind of key isn't supported, or None if it is."""
    kty = key.get("kty")
    if not isinstance(kty, str) or kty not in _CURVES:
        return f"kty {told(kty)} is not a supported type of public key"
    if "alg" in key and key["alg"] not in _ALGORITHMS:
        return f"alg {told(key['alg'])} is not a supported signature algorithm"
    if _CURVES[kty] and "crv" in key and key["crv"] not in _CURVES[kty]:
        return f"crv {told(key['crv'])} is not a supported curve"
    return None


def _parsed(key: dict[str, Any], algorithms: Sequence[str], where: str) -> dict[str, jwt.PyJWK]:
    """Return a key for each algorithm with which it can be used. If `alg` is present, there is only
    one.
    """
    if "d" in key:
        raise InvalidArgument(f"{where}: is a private key; use only the public key", field=FIELD)
    try:
        parsed = jwt.PyJWK(key)
    except (jwt.PyJWTError, NotImplementedError, TypeError, ValueError) as error:
        # The last three errors are caused by `alg: none` and by invalid numbers.
        raise InvalidArgument(f"{where}: {told(str(error), 160)}", field=FIELD) from error
    if key["kty"] == "RSA" and not MIN_RSA_BITS <= (bits := parsed.key.key_size) <= MAX_RSA_BITS:
        raise InvalidArgument(
            f"{where}: has {bits} bits; RSA keys must have {MIN_RSA_BITS} to {MAX_RSA_BITS} bits",
            field=FIELD,
        )
    found = {}
    for algorithm in algorithms:
        if key.get("alg", algorithm) == algorithm:
            # PyJWK raises an error if the key has a different type or curve than the algorithm
            # requires.
            with suppress(jwt.PyJWTError):
                found[algorithm] = jwt.PyJWK(key, algorithm)
    return found


def verified(token: str, keys: IssuerKeys, config: JwtConfig) -> VerifiedToken:
    """Verify the issuer's signature and return the token's claims. Raises `Unauthenticated` if the
    token isn't valid.
    """
    if len(token) > MAX_TOKEN_CHARS:
        raise Unauthenticated(f"the token has more than {MAX_TOKEN_CHARS} characters")
    try:
        head = jwt.get_unverified_header(token)
        algorithm = head.get("alg")
        if algorithm not in config.algorithms:
            raise Unauthenticated(
                f"the token's algorithm, {told(algorithm)}, is not listed in "
                "gateway.auth.jwt.algorithms"
            )
        if "crit" in head:
            raise Unauthenticated("the token has critical headers, which are not supported")
        claims = jwt.decode(
            token,
            # PyJWT has already verified that the ID is a string.
            keys.find(head.get("kid"), algorithm),
            algorithms=[algorithm],
            issuer=config.issuer,
            audience=config.audience,
            leeway=config.leeway_s,
            options={"require": _REQUIRED},
        )
    except (jwt.PyJWTError, RecursionError, OverflowError) as error:
        # For malicious input, Python's JSON reader and its numbers can raise the last two errors.
        raise Unauthenticated(f"the token is not valid: {told(str(error), 160)}") from error
    return VerifiedToken(claims["sub"], min(int(claims["exp"]), LAST_S) + config.leeway_s)
