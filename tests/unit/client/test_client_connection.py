"""How both clients connect: TLS, a client's certificate, and the API key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

import antiphon
from antiphon.client.connection import is_local, target
from antiphon.errors import FailedPrecondition, InvalidArgument, Unavailable
from antiphon_testkit.certificates import Certificates
from tests.unit.client.speech_server import Speech, greeting
from tests.unit.client.twins import ask_async, ask_blocking

Serve = Callable[..., Speech]
Ask = Callable[..., Awaitable[antiphon.Reply]]
ONCE = antiphon.Retry(attempts=1)
both = pytest.mark.parametrize("ask", [ask_blocking, ask_async], ids=["blocking", "async"])


def server_credentials(made: Certificates, *, ask_client: bool = False) -> grpc.ServerCredentials:
    pair = (made.server_key.read_bytes(), made.server.read_bytes())
    authority = made.authority.read_bytes() if ask_client else None
    return grpc.ssl_server_credentials([pair], authority, ask_client)


@both
async def test_client_tls_reaches_a_server_of_its_own_authority(
    serve: Serve, certificates: Certificates, ask: Ask
) -> None:
    server = serve(greeting, server_credentials(certificates))
    tls = antiphon.Tls(root_certificates=certificates.authority)
    reply = await ask(server.address, tls=tls, api_key="secret")
    assert reply.text == "Hello"
    assert server.metadata["authorization"] == "Bearer secret"
    by_name = antiphon.Tls(certificates.authority.read_bytes(), server_name="speech.example")
    assert (await ask(server.address, tls=by_name)).text == "Hello"


@both
async def test_client_tls_refuses_a_server_that_it_cannot_trust(
    serve: Serve, certificates: Certificates, ask: Ask
) -> None:
    server = serve(greeting, server_credentials(certificates))
    other = antiphon.Tls(certificates.authority, server_name="other.example")
    for tls in (True, other):
        with pytest.raises(FailedPrecondition, match=server.address) as refused:
            await ask(server.address, tls=tls)
        assert refused.value.field == "tls"
    assert server.requests == []


@both
async def test_client_that_talks_to_a_tls_port_in_clear_is_advised_to_use_tls(
    serve: Serve, certificates: Certificates, ask: Ask
) -> None:
    server = serve(greeting, server_credentials(certificates))
    with pytest.raises(Unavailable, match="tls=True"):
        await ask(server.address, retry=ONCE)


@both
async def test_client_that_talks_tls_to_a_port_in_clear_does_not_try_for_long(
    serve: Serve, ask: Ask
) -> None:
    with pytest.raises(FailedPrecondition, match="WRONG_VERSION"):
        await ask(serve(greeting).address, tls=True)


@both
async def test_client_tls_shows_its_certificate_where_the_server_asks_for_one(
    serve: Serve, certificates: Certificates, ask: Ask
) -> None:
    server = serve(greeting, server_credentials(certificates, ask_client=True))
    with pytest.raises(Unavailable, match="client certificate"):
        await ask(server.address, tls=antiphon.Tls(certificates.authority), retry=ONCE)
    tls = antiphon.Tls(certificates.authority, certificates.client, certificates.client_key)
    assert (await ask(server.address, tls=tls)).text == "Hello"


@both
async def test_client_key_goes_unencrypted_to_this_machine_alone(serve: Serve, ask: Ask) -> None:
    server = serve(greeting)
    await ask(server.address, api_key="secret")
    assert server.metadata["authorization"] == "Bearer secret"
    await ask(server.address)
    assert "authorization" not in server.metadata
    with pytest.raises(InvalidArgument, match="without encryption") as refused:
        await ask("speech.example:443", api_key="secret")
    assert refused.value.field == "api_key"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("localhost:1", True),
        ("127.3.2.1:1", True),
        ("[::1]:1", True),
        ("dns:///localhost:1", True),
        ("ipv4:127.0.0.1:1,127.0.0.2:1", True),
        ("unix:/run/antiphon", True),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
        ("ipv4:127.0.0.1:1,10.0.0.1:1", False),
        ("dns://10.0.0.1/localhost:1", False),
        ("speech.example", False),
        ("[::1", False),
    ],
)
def test_client_address_is_local_only_when_its_text_says_so(address: str, local: bool) -> None:
    assert is_local(address) is local


def test_what_a_listener_does_not_take_stays_with_the_server() -> None:
    free = target("localhost:1", False, None, key_in_clear=False)
    bound = target("localhost:1", False, None, key_in_clear=False, read_ahead_bytes=4096)
    window = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096))
    assert bound.options == (*free.options, *window)


async def test_client_key_may_go_unencrypted_when_the_caller_says_so() -> None:
    antiphon.Client("speech.example:80", api_key="secret", key_in_clear=True).close()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"read_ahead_bytes": 0}, "read_ahead_bytes"),
        ({"read_ahead_bytes": "much"}, "read_ahead_bytes"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": "sécret"}, "api_key"),
        ({"api_key": "a\nb"}, "api_key"),
        ({"api_key": 7}, "api_key"),
        ({"tls": "yes"}, "tls"),
        ({"tls": antiphon.Tls(certificate_chain=b"x")}, "tls.private_key"),
        ({"tls": antiphon.Tls(root_certificates=Path("/nowhere/ca.pem"))}, "tls.root_certificates"),
        ({"retry": 3}, "retry"),
    ],
)
def test_client_refuses_when_it_cannot_connect_so(given: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        antiphon.Client("localhost:1", **given)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert "sécret" not in str(refused.value)
