"""Callers that a trusted proxy's header, or a JWT, names: at every endpoint, by one rule."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import antiphon
from antiphon.deployment.auth_config import (
    AuthConfig,
    IdentityLimits,
    JwtConfig,
    TrustedProxyConfig,
)
from antiphon.deployment.schema import GatewayConfig, deployment_of
from antiphon.errors import InvalidArgument
from antiphon.v1 import speech_pb2, speech_pb2_grpc
from antiphon_gateway.keys import identities
from antiphon_gateway.keys.credentials import Credentials, GrpcPeers, peer_address
from antiphon_gateway.keys.identities import Identities
from antiphon_gateway.keys.key_file import digest_of, new_key
from tests.contract.served_gateway import MESSAGES, MODEL, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

ISSUER, AUDIENCE = "https://login.example", "speech"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC_PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
JWT = {"issuer": "a", "audience": "b", "jwks_file": "c"}
HEADER = "x-auth-user"
PROXY = TrustedProxyConfig(header=HEADER, networks=("127.0.0.0/8",))
ELSEWHERE = TrustedProxyConfig(header=HEADER, networks=("10.0.0.0/8", "fd00::/8"))


def public(key: Any, kid: str, **fields: str) -> dict[str, Any]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    made: dict[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": kid, "use": "sig", **fields}


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def write_jwks(path: Path, *keys: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.encode({"keys": keys}))


def token(
    key: Any = RSA_KEY, kid: str | None = "one", algorithm: str = "RS256", **claims: Any
) -> str:
    content = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 600}
    content = {k: v for k, v in {**content, **claims}.items() if v is not None}
    return jwt.encode(content, key, algorithm, {} if kid is None else {"kid": kid})


def forged(head: dict[str, Any], secret: bytes = b"") -> str:
    """A token with a header that no library makes, with an HMAC where there is a secret."""
    content = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 600}
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (head, content)
    ]
    signed = b".".join(parts)
    mac = hmac.new(secret, signed, hashlib.sha256).digest() if secret else b""
    return (signed + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    write_jwks(path, public(RSA_KEY, "one"), public(EC_KEY, "two"))
    return path


def jwt_of(jwks: Path, **fields: Any) -> JwtConfig:
    return JwtConfig(issuer=ISSUER, audience=AUDIENCE, jwks_file=str(jwks), **fields)


@asynccontextmanager
async def authenticating(auth: AuthConfig, **settings: Any) -> AsyncIterator[ServedGateway]:
    async with serve_gateway(auth=auth, keys_reload_s=0.001, **settings) as served:
        yield served


async def over_http(served: ServedGateway, **headers: str) -> int:
    body = {"model": MODEL, "messages": MESSAGES}
    answer = await served.http.post("/v1/chat/completions", json=body, headers=headers)
    if answer.status_code == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
    return answer.status_code


async def over_websocket(served: ServedGateway, **headers: str) -> int:
    try:
        url = f"{served.url.replace('http', 'ws')}/v1/realtime"
        async with connect(url, additional_headers=headers) as websocket:
            assert json.loads(await websocket.recv())["type"] == "session.created"
    except InvalidStatus as error:
        return error.response.status_code
    return 200


async def over_grpc(served: ServedGateway, **headers: str) -> int:
    async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
        stub: Any = speech_pb2_grpc.SpeechServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            metadata = tuple(headers.items())
            await stub.GetServerInfo(speech_pb2.GetServerInfoRequest(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            codes = {"UNAUTHENTICATED": 401, "INVALID_ARGUMENT": 400, "RESOURCE_EXHAUSTED": 431}
            return codes[error.code().name]
    return 200


ENDPOINTS = (over_http, over_websocket, over_grpc)


async def statuses(served: ServedGateway, **headers: str) -> list[int]:
    return [await ask(served, **headers) for ask in ENDPOINTS]


async def test_a_token_stands_for_a_key_at_every_endpoint(
    jwks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="gateway.requests")
    async with authenticating(AuthConfig(jwt=jwt_of(jwks))) as served:
        for given in (token(), token(EC_KEY, "two", "ES256", sub="bob@example")):
            assert await statuses(served, authorization=f"Bearer {given}") == [200] * 3
            key = antiphon.AsyncClient(served.gateway.grpc_address, api_key=given)
            async with key as client:
                assert (await client.generate("Hi").collect()).text
        assert await statuses(served) == [401] * 3
        assert (await served.http.get("/health")).status_code == 200
    named = {json.loads(each.message).get("key") for each in caplog.records}
    assert named == {"jwt:alice", "jwt:bob@example", None}


WRONG: dict[str, Callable[[], str]] = {
    "another issuer": lambda: token(iss="https://evil.example"),
    "no issuer": lambda: token(iss=None),
    "another audience": lambda: token(aud="other"),
    "no audience": lambda: token(aud=None),
    "expired": lambda: token(exp=time.time() - 31),
    "no expiry": lambda: token(exp=None),
    "not valid yet": lambda: token(nbf=time.time() + 120),
    "no subject": lambda: token(sub=None),
    "an empty subject": lambda: token(sub=""),
    "a subject with a line break": lambda: token(sub="a\nb"),
    "a very long subject": lambda: token(sub="a" * 257),
    "alg none": lambda: forged({"alg": "none", "kid": "one"}),
    "alg None": lambda: forged({"alg": "None", "kid": "one"}),
    "HS256 with the public key": lambda: forged({"alg": "HS256", "kid": "one"}, PUBLIC_PEM),
    "an algorithm that is not configured": lambda: token(algorithm="RS512"),
    "the algorithm of another key": lambda: forged({"alg": "ES256", "kid": "one"}, b"x"),
    "an unknown kid": lambda: token(kid="three"),
    "no kid among two keys": lambda: token(kid=None),
    "a kid that is no text": lambda: forged({"alg": "RS256", "kid": ["one"]}),
    "another's key": lambda: token(OTHER_KEY),
    "a key of its own": lambda: forged(
        {"alg": "RS256", "kid": "one", "jwk": public(OTHER_KEY, "one")}, b"x"
    ),
    "critical headers": lambda: forged({"alg": "RS256", "kid": "one", "crit": ["b64"]}),
    "a changed signature": lambda: token()[:-8] + "AAAAAAAA",
    "a huge token": lambda: token(sub="a" * 16_000),
    "no JSON": lambda: "a.b.c",
    "empty parts": lambda: "..",
    "nested without end": lambda: base64.urlsafe_b64encode(b"[" * 5000).decode() + ".a.b",
}


async def test_what_is_no_token_of_the_issuer_is_refused(jwks: Path) -> None:
    async with authenticating(AuthConfig(jwt=jwt_of(jwks))) as served:
        for fault, make in WRONG.items():
            given = f"Bearer {make()}"
            # Of a WebSocket's handshake a line may have 8 KiB, and gRPC's metadata twice that.
            early = 431 if len(given) > 16_384 else 401
            assert await statuses(served, authorization=given) == [401, early, early], fault
        # Within the leeway it holds.
        late = f"Bearer {token(exp=time.time() - 5, nbf=time.time() + 5)}"
        assert await over_http(served, authorization=late) == 200


async def test_keys_of_an_issuer_are_parsed_when_their_file_is_read(
    jwks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithms = ("RS256", "RS512", "ES256")
    config = GatewayConfig(auth=AuthConfig(jwt=jwt_of(jwks, algorithms=algorithms)))
    found = Identities(config)
    # From here on none can be made.
    monkeypatch.setattr(jwt, "PyJWK", None)
    for given in (token(), token(algorithm="RS512"), token(EC_KEY, "two", "ES256")):
        credentials = Credentials(f"Bearer {given}", peer_address("127.0.0.1"), lambda _: [])
        assert (await found.identify(credentials)).key.name == "jwt:alice"


async def test_a_key_is_used_with_its_own_algorithm_alone(jwks: Path) -> None:
    write_jwks(jwks, public(RSA_KEY, "one", alg="RS256"), public(EC_KEY, "two"))
    algorithms = ("RS256", "RS512", "ES256")
    async with authenticating(AuthConfig(jwt=jwt_of(jwks, algorithms=algorithms))) as served:
        assert await over_http(served, authorization=f"Bearer {token()}") == 200
        assert await over_http(served, authorization=f"Bearer {token(algorithm='RS512')}") == 401


def jwks_with(**fields: Any) -> bytes:
    return msgspec.json.encode({"keys": [{**public(RSA_KEY, "a"), **fields}]})


BROKEN_JWKS = (
    b"{",
    b'{"keys": [{"kty": "\xff"}]}',
    b'{"x": ' + b"[" * 50_000,
    *(jwks_with(kty=kty) for kty in (["RSA"], {}, None, 1, "")),
    *(jwks_with(alg=alg) for alg in (["RS256"], {}, 1, "none", "HS256", "RS257")),
    *(jwks_with(n=number) for number in (None, 1, [], "", "!", "AA", "\0")),
    jwks_with(n="_" * 170),
)


async def test_rotated_keys_are_read_and_a_broken_file_leaves_what_held(jwks: Path) -> None:
    async with authenticating(AuthConfig(jwt=jwt_of(jwks))) as served:
        old, new = f"Bearer {token()}", f"Bearer {token(OTHER_KEY, 'next')}"
        assert await over_http(served, authorization=new) == 401
        write_jwks(jwks, public(OTHER_KEY, "next"), public(RSA_KEY, "one"))
        assert await over_http(served, authorization=new) == 200
        assert await over_http(served, authorization=old) == 200
        write_jwks(jwks, public(OTHER_KEY, "next"))
        assert await statuses(served, authorization=old) == [401] * 3
        for broken in BROKEN_JWKS:
            write(jwks, broken)
            assert await statuses(served, authorization=new) == [200] * 3


async def test_a_conversation_ends_when_its_token_expires(jwks: Path) -> None:
    auth = AuthConfig(jwt=jwt_of(jwks, leeway_s=0.0))
    async with authenticating(auth) as served:
        given = token(exp=time.time() + 2)
        url = f"{served.url.replace('http', 'ws')}/v1/realtime"
        headers = {"authorization": f"Bearer {given}"}
        async with connect(url, additional_headers=headers) as websocket:
            await websocket.wait_closed()
            assert (websocket.close_code, websocket.close_reason) == (1008, "the token has expired")


UNKNOWN_KEYS: dict[str, dict[str, Any]] = {
    "a signature to come": {"kty": "AKP", "alg": "ML-DSA-44", "kid": "later", "pub": "AA"},
    "a shared secret": {"kty": "oct", "k": "c2VjcmV0", "kid": "mac"},
    "no type": {"kid": "none"},
    "a type that is a number": {"kty": 7, "kid": "number"},
    "an unknown algorithm": {**public(RSA_KEY, "pq"), "alg": "RS257"},
    "an algorithm for encryption": {**public(RSA_KEY, "encrypts"), "alg": "RSA-OAEP"},
    "an unknown curve": {**public(EC_KEY, "curve"), "crv": "P-999"},
    "no id": {"kty": "AKP", "alg": "ML-DSA-44"},
    "a known key's id": {"kty": "AKP", "alg": "ML-DSA-44", "kid": "one"},
}


@pytest.mark.parametrize("unknown", UNKNOWN_KEYS.values(), ids=UNKNOWN_KEYS.keys())
async def test_a_key_of_an_unknown_kind_is_skipped_and_the_others_hold(
    tmp_path: Path, unknown: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """RFC 7517, section 5."""
    path = tmp_path / "jwks.json"
    write_jwks(path, unknown, public(RSA_KEY, "one"))
    async with authenticating(AuthConfig(jwt=jwt_of(path))) as door:
        for given, status in ((token(), 200), (token(kid=unknown.get("kid") or "later"), 401)):
            expected = 200 if unknown.get("kid") == "one" else status
            assert await over_http(door, authorization=f"Bearer {given}") == expected
    assert "keys[0] is skipped" in caplog.text
    write_jwks(path, unknown)
    with pytest.raises(InvalidArgument, match=r"no usable key.*keys\[0\]") as caught:
        Identities(GatewayConfig(auth=AuthConfig(jwt=jwt_of(path))))
    assert caught.value.field == "gateway.auth.jwt.jwks_file"


async def test_a_token_without_a_key_id_is_checked_with_the_only_usable_key(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jwks.json"
    write_jwks(path, UNKNOWN_KEYS["a signature to come"], public(RSA_KEY, "one"))
    async with authenticating(AuthConfig(jwt=jwt_of(path))) as door:
        assert await over_http(door, authorization=f"Bearer {token(kid=None)}") == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"keys": []}, "0 signature keys"),
        (
            {"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]},
            "not a supported type of public key",
        ),
        ({"keys": [{"kty": "RSA", "kid": "a"}]}, r"keys\[0\]"),
        ({"keys": [{**public(RSA_KEY, "a"), "d": "x"}]}, "private key"),
        (
            {"keys": [public(RSA_KEY, "a"), public(EC_KEY, "a")]},
            r"keys\[1\]: must have a unique `kid`",
        ),
        ({"keys": [public(RSA_KEY, "a"), {**public(EC_KEY, "b"), "kid": None}]}, "is a string"),
        ({"keys": [{**public(RSA_KEY, "a"), "kid": 5}]}, "is a string"),
        ({"keys": [{**public(RSA_KEY, "a"), "n": "_" * 340}]}, "has 2040 bits; RSA keys"),
        ({}, "keys"),
    ],
)
async def test_a_wrong_jwks_file_is_an_error_at_the_start(
    tmp_path: Path, content: dict[str, Any], words: str
) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(msgspec.json.encode(content))
    with pytest.raises(InvalidArgument, match=words) as caught:
        Identities(GatewayConfig(auth=AuthConfig(jwt=jwt_of(path))))
    assert caught.value.field == "gateway.auth.jwt.jwks_file"
    path.write_bytes(b" " * (256 << 10) + b"{}")
    with pytest.raises(InvalidArgument, match="more than"):
        Identities(GatewayConfig(auth=AuthConfig(jwt=jwt_of(path))))
    with pytest.raises(InvalidArgument, match=r"regular file|directory"):
        Identities(GatewayConfig(auth=AuthConfig(jwt=jwt_of(tmp_path))))


@pytest.mark.parametrize(
    ("auth", "field"),
    [
        ({"jwt": {**JWT, "algorithms": ["HS256"]}}, "algorithms"),
        ({"jwt": {**JWT, "issuer": ""}}, "issuer"),
        ({"jwt": {"issuer": "a", "jwks_file": "c"}}, "audience"),
        ({"jwt": {**JWT, "leeway_s": 3600}}, "leeway_s"),
        ({"trusted_proxy": {"header": "x-user", "networks": []}}, "networks"),
        ({"trusted_proxy": {"header": "x-user", "networks": ["10.0.0.1/8"]}}, "networks"),
        ({"trusted_proxy": {"header": "authorization", "networks": ["::1"]}}, "header"),
        ({"trusted_proxy": {"header": "x user", "networks": ["::1"]}}, "header"),
        ({"proxy": {}}, "gateway.auth.proxy"),
    ],
)  # fmt: skip
async def test_wrong_settings_are_errors_that_name_their_field(
    auth: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument, match=field):
        deployment_of({"gateway": {"auth": auth}})


async def test_a_trusted_proxy_names_its_callers_at_every_endpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="gateway.requests")
    async with authenticating(AuthConfig(trusted_proxy=PROXY)) as served:
        assert await statuses(served, **{HEADER: "alice"}) == [200] * 3
        assert await statuses(served) == [401] * 3
        for wrong in ("a" * 257, "a\tb"):
            assert await over_http(served, **{HEADER: wrong}) == 401
        twice = await served.http.get("/v1/models", headers=[(HEADER, "alice"), (HEADER, "bob")])
        assert twice.status_code == 400
    assert "proxy:alice" in {json.loads(each.message).get("key") for each in caplog.records}


async def test_the_header_of_anyone_else_is_refused(tmp_path: Path) -> None:
    key, path = new_key(), tmp_path / "keys.yaml"
    path.write_bytes(msgspec.yaml.encode({"keys": [{"name": "app", "sha256": digest_of(key)}]}))
    auth = AuthConfig(trusted_proxy=ELSEWHERE)
    async with authenticating(auth, keys_file=str(path)) as served:
        own = {"authorization": f"Bearer {key}"}
        assert await statuses(served, **own) == [200] * 3
        # Also beside a key that holds, and whatever forwarding headers say.
        for more in ({}, own, {"x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1"}):
            assert await statuses(served, **{HEADER: "alice", **more}) == [401] * 3


async def test_each_named_caller_has_limits_of_its_own() -> None:
    auth = AuthConfig(trusted_proxy=PROXY, limits=IdentityLimits(requests_per_minute=1))
    async with authenticating(auth) as served:
        assert await over_http(served, **{HEADER: "alice"}) == 200
        assert await over_http(served, **{HEADER: "alice"}) == 429
        assert await over_http(served, **{HEADER: "bob"}) == 200
        metadata = ((HEADER, "alice"),)
        async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
            call = channel.unary_stream("/antiphon.v1.SpeechService/Generate")
            code = await call(b"", metadata=metadata).code()
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_callers_that_are_forgotten_are_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "MAX_NAMED", 2)
    limits = IdentityLimits(concurrency=1)
    found = Identities(GatewayConfig(auth=AuthConfig(trusted_proxy=PROXY, limits=limits)))

    async def use(name: str) -> Any:
        given = Credentials(None, peer_address("127.0.0.1"), lambda _: [name])
        return (await found.identify(given)).key

    busy = await use("busy")
    with busy.request():
        others = [await use(f"other-{number}") for number in range(5)]
        assert await use("busy") is busy
        # Two are known: the busy one and the last.
        assert await use("other-4") is others[4]
        assert await use("other-3") is not others[3]


async def test_peers_are_read_as_sockets_and_grpc_write_them() -> None:
    assert str(peer_address("::ffff:10.1.2.3")) == "10.1.2.3"
    assert str(peer_address("fe80::1%eth0")) == "fe80::1"
    assert peer_address("/run/socket") is None
    peers = GrpcPeers()
    for peer, address in (
        ("ipv4:10.1.2.3:4711", "10.1.2.3"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[::ffff:10.1.2.3]:1", "10.1.2.3"),
    ):
        assert str(peers.address_of(peer)) == address
    assert peers.address_of("unix:/run/socket") is None
    peers.add("unix:/tmp/antiphon-1/client", "10.1.2.4")
    assert str(peers.address_of("unix:/tmp/antiphon-1/client")) == "10.1.2.4"
    peers.add("unix-abstract:antiphon-client-1", "10.1.2.3")
    assert str(peers.address_of("unix-abstract:antiphon-client-1")) == "10.1.2.3"
    assert peers.address_of("unix-abstract:antiphon-client-2") is None
    peers.remove("unix-abstract:antiphon-client-1")
    assert peers.address_of("unix-abstract:antiphon-client-1") is None
