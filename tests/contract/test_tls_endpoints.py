"""Both endpoints with TLS: who gets in, over which protocol, what a start without files says."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
import pytest_asyncio
import websockets
from msgspec import structs

import antiphon
from antiphon.deployment.tls_config import TlsConfig
from antiphon.errors import FailedPrecondition, InvalidArgument, Unavailable
from antiphon_gateway.serving.tls import server_tls
from antiphon_testkit.certificates import Certificates, make_certificates
from antiphon_tools.load.options import read_options
from antiphon_tools.load.target import target_at
from antiphon_tools.load.trials import load_service
from tests.contract.fake_stages import FRAMES, TEXTS
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONCE = antiphon.Retry(attempts=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def settings(made: Certificates, *, client_ca: bool = False) -> TlsConfig:
    authority = str(made.authority) if client_ca else ""
    return TlsConfig(
        certificate_file=str(made.server), key_file=str(made.server_key), client_ca_file=authority
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secure(made: Certificates) -> AsyncIterator[ServedGateway]:
    async with serve_gateway(tls=settings(made)) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient(made: Certificates) -> AsyncIterator[ServedGateway]:
    """One that waits for no handshake."""
    async with serve_gateway(tls=settings(made), head_timeout_s=0.2) as served:
        yield served


async def test_gateway_with_tls_serves_all_its_endpoints(
    secure: ServedGateway, made: Certificates
) -> None:
    trusting = ssl.create_default_context(cafile=made.authority)
    address = secure.gateway.http_address
    async with httpx.AsyncClient(verify=trusting, timeout=240) as http:
        client = openai.AsyncOpenAI(
            base_url=f"https://{address}/v1", api_key="none", http_client=http, max_retries=0
        )
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, **SPOKEN
        )
        texts = [each async for each in stream]
        assert len(texts) > len(TEXTS)
    url = f"wss://{address}/v1/realtime?model={MODEL}"
    async with websockets.connect(url, ssl=trusting) as realtime:
        assert json.loads(await realtime.recv())["type"] == "session.created"
    tls = antiphon.Tls(made.authority)
    async with antiphon.AsyncClient(secure.gateway.grpc_address, tls=tls, api_key="k") as client:
        reply = await client.generate("Hi").collect()
        assert len(reply.pcm16) // 2 == sum(FRAMES) * 1920 - 555
        async with client.converse() as call:
            assert call.opened.model == MODEL


@pytest.mark.parametrize("scheme", ["https://", ""])
async def test_gateway_with_tls_can_be_loaded(
    secure: ServedGateway, made: Certificates, scheme: str
) -> None:
    gateway = secure.gateway
    address = f"{scheme}{gateway.http_address if scheme else gateway.grpc_address}"
    short = ("--sessions", "1", "--seconds", "0.2", "--warm-up", "0")
    arguments = ["gateway", "--target", address, "--tls", str(made.authority), *short]
    options = read_options(arguments)
    result = await load_service(options, target_at("gateway", address), io.StringIO())
    assert not result.errors
    assert result.requests.succeeded


async def test_gateway_with_tls_answers_nobody_in_the_clear(secure: ServedGateway) -> None:
    with pytest.raises(httpx.HTTPError):
        await secure.http.get("/health")
    async with antiphon.AsyncClient(secure.gateway.grpc_address, retry=ONCE) as client:
        with pytest.raises(Unavailable):
            await client.server_info()


@pytest.mark.parametrize("endpoint", ["http", "grpc"])
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_handshake_that_does_not_come_is_cut_off(
    impatient: ServedGateway, endpoint: str, sent: bytes
) -> None:
    host, port = getattr(impatient.gateway, f"{endpoint}_address").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_grpc_connections_count_before_their_handshake(made: Certificates) -> None:
    async with serve_gateway(tls=settings(made), max_grpc_connections=1) as served:
        host, port = served.gateway.grpc_address.split(":")
        (_, silent), (refused, second) = [
            await asyncio.open_connection(host, int(port)) for _ in range(2)
        ]
        assert await refused.read() == b""
        registry = served.gateway.metrics.registry
        assert registry.get_sample_value("antiphon_gateway_grpc_connections") == 1
        silent.close()
        second.close()


async def test_http_connections_count_before_their_handshake(made: Certificates) -> None:
    """The longest one gives way when all connections are in use."""
    trusting = ssl.create_default_context(cafile=made.authority)
    async with serve_gateway(tls=settings(made), head_timeout_s=60.0, max_connections=2) as served:
        host, port = served.gateway.http_address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        async with httpx.AsyncClient(verify=trusting, base_url=f"https://{host}:{port}") as http:
            page = (await http.get("/metrics")).text
        assert "antiphon_gateway_connections 2.0" in page
        assert 'antiphon_gateway_refused_total{bound="idle_connection"} 1.0' in page
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()


async def test_gateway_that_asks_clients_for_a_certificate(made: Certificates) -> None:
    async with serve_gateway(tls=settings(made, client_ca=True)) as served:
        own = antiphon.Tls(made.authority, made.client, made.client_key)
        for tls, welcome in ((antiphon.Tls(made.authority), False), (own, True)):
            async with antiphon.AsyncClient(
                served.gateway.grpc_address, tls=tls, retry=ONCE
            ) as client:
                if welcome:
                    assert (await client.server_info()).models
                else:
                    with pytest.raises(Unavailable):
                        await client.server_info()
        trusting = ssl.create_default_context(cafile=made.authority)
        url = f"https://{served.gateway.http_address}/health"
        async with httpx.AsyncClient(verify=trusting) as http:
            with pytest.raises(httpx.HTTPError):
                await http.get(url)
        trusting.load_cert_chain(made.client, made.client_key)
        async with httpx.AsyncClient(verify=trusting) as http:
            assert (await http.get(url)).status_code == 200


async def served_to(served: ServedGateway, made: Certificates) -> bool:
    """Whether both endpoints serve a client that trusts this authority alone; both say the same."""
    trusting = ssl.create_default_context(cafile=made.authority)
    async with httpx.AsyncClient(verify=trusting) as http:
        try:
            await http.get(f"https://{served.gateway.http_address}/health")
            over_http = True
        except httpx.ConnectError:
            over_http = False
    tls = antiphon.Tls(made.authority)
    async with antiphon.AsyncClient(served.gateway.grpc_address, tls=tls, retry=ONCE) as client:
        try:
            await client.server_info()
            over_grpc = True
        except FailedPrecondition:
            over_grpc = False
    assert over_http == over_grpc
    return over_http


async def test_renewed_certificate_holds_for_new_connections(
    made: Certificates, tmp_path: Path
) -> None:
    """Files that do not fit together change nothing."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for file in (made.server, made.server_key):
        shutil.copy(file, mounted)
    holds = replace(
        made, server=mounted / made.server.name, server_key=mounted / made.server_key.name
    )
    (tmp_path / "renewed").mkdir()
    renewed = make_certificates(tmp_path / "renewed")
    async with serve_gateway(tls=settings(holds)) as served:
        trusting = ssl.create_default_context(cafile=made.authority)
        url = f"wss://{served.gateway.http_address}/v1/realtime?model={MODEL}"
        async with websockets.connect(url, ssl=trusting) as begun:
            await begun.recv()
            shutil.copy(renewed.server, mounted)
            assert await served_to(served, made)
            shutil.copy(renewed.server_key, mounted)
            assert await served_to(served, renewed)
            assert not await served_to(served, made)
            await begun.send(json.dumps({"type": "input_audio_buffer.clear"}))
            assert json.loads(await begun.recv())["type"] == "input_audio_buffer.cleared"


async def test_renewed_authority_of_clients_holds_for_new_connections(
    made: Certificates, tmp_path: Path
) -> None:
    authority = tmp_path / "authority.pem"
    shutil.copy(made.authority, authority)
    (tmp_path / "renewed").mkdir()
    renewed = make_certificates(tmp_path / "renewed")
    asking = structs.replace(settings(made), client_ca_file=str(authority))
    async with serve_gateway(tls=asking) as served:

        async def welcomes(client: Certificates) -> bool:
            trusting = ssl.create_default_context(cafile=made.authority)
            trusting.load_cert_chain(client.client, client.client_key)
            async with httpx.AsyncClient(verify=trusting) as http:
                try:
                    await http.get(f"https://{served.gateway.http_address}/health")
                except httpx.HTTPError:
                    return False
            return True

        assert [await welcomes(each) for each in (made, renewed)] == [True, False]
        shutil.copy(renewed.authority, authority)
        assert [await welcomes(each) for each in (made, renewed)] == [False, True]


async def test_authority_of_clients_that_is_being_written_changes_nothing(
    made: Certificates, tmp_path: Path
) -> None:
    authority = tmp_path / "authority.pem"
    shutil.copy(made.authority, authority)
    asking = structs.replace(settings(made), client_ca_file=str(authority))
    own = antiphon.Tls(made.authority, made.client, made.client_key)
    trusting = ssl.create_default_context(cafile=made.authority)
    trusting.load_cert_chain(made.client, made.client_key)
    async with serve_gateway(tls=asking) as served:
        for written in (made.authority.read_bytes(), b""):
            authority.write_bytes(written)
            async with httpx.AsyncClient(verify=trusting) as http:
                answer = await http.get(f"https://{served.gateway.http_address}/health")
                assert answer.status_code == 200
            address = served.gateway.grpc_address
            async with antiphon.AsyncClient(address, tls=own, retry=ONCE) as client:
                assert (await client.server_info()).models


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"certificate_file": "/nowhere/tls.crt"}, "certificate_file"),
        ({"key_file": "/nowhere/tls.key"}, "key_file"),
        ({"key_file": "client_key"}, "key_file"),
        ({"client_ca_file": "client_key"}, "client_ca_file"),
        ({"client_ca_file": "/dev/null"}, "client_ca_file"),
    ],
)
async def test_gateway_does_not_start_with_files_that_do_not_fit(
    made: Certificates, changed: dict[str, str], field: str
) -> None:
    names = {"certificate_file": "server", "key_file": "server_key"} | changed
    files = {
        name: value if Path(value).is_absolute() else str(getattr(made, value))
        for name, value in names.items()
    }
    with pytest.raises(InvalidArgument) as refused:
        server_tls(TlsConfig(**files))
    assert refused.value.field == f"gateway.tls.{field}"
