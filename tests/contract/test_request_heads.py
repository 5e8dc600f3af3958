"""Heads of requests that could be meant for another site, or read in two ways; what is told to
whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import msgspec
import pytest
import pytest_asyncio
import websockets

from antiphon.errors import InvalidArgument, Unavailable
from antiphon.v1 import speech_pb2
from antiphon_gateway.keys.key_file import digest_of, new_key
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import FakeStages
from tests.contract.served_gateway import MODEL, ServedGateway, deployment_of, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})


async def ask_raw(
    address: str, *fields: str, path: str = "/v1/models", version: str = "1.1"
) -> str:
    """The whole response to a GET with these header fields and no others."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = (f"GET {path} HTTP/{version}", *fields, "Connection: close", "", "")
    writer.write("\r\n".join(lines).encode())
    response = (await reader.read()).decode()
    writer.close()
    return response


def status_of(response: str) -> int:
    return int(response.split(" ")[1])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def named_gateway() -> AsyncIterator[ServedGateway]:
    async with serve_gateway(
        host_names=("Speech.example", "gateway.svc", "*.many.example")
    ) as served:
        yield served


OWN = (
    "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000", "10.1.2.3:80", "192.0.2.7",
    "localhost", "LOCALHOST:8000", "app.localhost:3000", "localhost.", "speech.example",
    "SPEECH.EXAMPLE.:443", "gateway.svc:8000", "one.many.example", "a.b.many.example:80",
)  # fmt: skip
FOREIGN = (
    "evil", "evil:80", "evil.example", "speech.example.evil", "notlocalhost", "localhost.evil",
    "127.0.0.1.nip.example", "many.example", "notmany.example", "gateway", "1.2.3", "0x7f.1", "",
)  # fmt: skip


@pytest.mark.parametrize("host", OWN)
async def test_addresses_localhost_and_configured_names_are_hosts(
    named_gateway: ServedGateway, host: str
) -> None:
    response = await ask_raw(named_gateway.gateway.http_address, f"Host: {host}")
    assert status_of(response) == 200, response


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics", "/", "/v1/nothing"])
@pytest.mark.parametrize("host", FOREIGN)
async def test_name_that_another_site_has_resolved_to_here_is_rejected(
    named_gateway: ServedGateway, host: str, path: str
) -> None:
    response = await ask_raw(named_gateway.gateway.http_address, f"Host: {host}", path=path)
    assert status_of(response) == 421
    error = json.loads(response.split("\r\n\r\n", 1)[1])["error"]
    assert error["param"] == "host"
    assert "gateway.host_names" in error["message"]


@pytest.mark.parametrize("origin", ["http://evil:80", None])
async def test_websocket_of_a_rebound_name_is_rejected(
    named_gateway: ServedGateway, origin: str | None
) -> None:
    host, _, port = named_gateway.gateway.http_address.rpartition(":")
    with pytest.raises(websockets.InvalidStatus) as caught:
        async with websockets.connect(
            f"ws://evil:{port}/v1/realtime", host=host, port=int(port), origin=origin
        ):
            pass
    assert caught.value.response.status_code == 421
    async with websockets.connect(
        f"ws://speech.example:{port}/v1/realtime", host=host, port=int(port)
    ) as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"


async def test_rejected_hosts_are_counted(named_gateway: ServedGateway) -> None:
    sample = 'antiphon_gateway_refused_total{bound="host_names"}'
    before = await named_gateway.metric(sample)
    await ask_raw(named_gateway.gateway.http_address, "Host: evil")
    assert await named_gateway.metric(sample) == before + 1


async def test_any_name_is_a_host_where_keys_are_needed_or_all_names_are_allowed(
    tmp_path: Path,
) -> None:
    path, key = tmp_path / "keys", new_key()
    path.write_bytes(msgspec.yaml.encode({"keys": [{"name": "app", "sha256": digest_of(key)}]}))
    async with serve_gateway(keys_file=str(path)) as served:
        fields = ("Host: speech.example", f"Authorization: Bearer {key}")
        assert status_of(await ask_raw(served.gateway.http_address, *fields)) == 200
    async with serve_gateway(host_names=("*",)) as served:
        assert status_of(await ask_raw(served.gateway.http_address, "Host: evil")) == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ((), "host"),
        (("Host: localhost", "Host: localhost"), "host"),
        (("Host: localhost", "Host: evil"), "host"),
        (
            ("Host: localhost", "Authorization: Bearer a", "Authorization: Bearer a"),
            "authorization",
        ),
        (
            ("Host: localhost", "Authorization: Bearer a", "authorization: Bearer b"),
            "authorization",
        ),
    ],
)
async def test_heads_that_can_be_read_in_two_ways_are_rejected(
    named_gateway: ServedGateway, fields: tuple[str, ...], param: str
) -> None:
    for path in ("/v1/models", "/health"):
        response = await ask_raw(named_gateway.gateway.http_address, *fields, path=path)
        assert status_of(response) == 400, response
        assert json.loads(response.split("\r\n\r\n", 1)[1])["error"]["param"] == param


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/v1/models", "localhost", 200),
        ("http://LOCALHOST:80/v1/models", "localhost", 200),
        ("https://localhost:443/v1/models", "localhost", 200),
        ("HTTP://localhost:8000/v1/models", "localhost:8000", 200),
        ("http://[::1]/v1/models", "[::1]:80", 200),
        ("http://evil/v1/models", "localhost", 400),
        ("http://localhost/v1/models", "evil", 400),
        ("http://localhost:8001/v1/models", "localhost:8000", 400),
        ("http://user@localhost/v1/models", "localhost", 400),
        ("http://localhost@evil/v1/models", "localhost", 400),
        ("http://evil/health", "localhost", 400),
        ("http://evil/", "evil", 421),
        ("http:///v1/models", "localhost", 400),
        ("//evil/v1/models", "localhost", 404),
    ],
)
async def test_a_target_that_names_a_host_names_the_same_as_the_field(
    named_gateway: ServedGateway, target: str, host: str, status: int
) -> None:
    response = await ask_raw(named_gateway.gateway.http_address, f"Host: {host}", path=target)
    assert status_of(response) == status, response
    if status == 400 and "{" in response:
        assert json.loads(response.split("\r\n\r\n", 1)[1])["error"]["param"] == "host"


async def test_a_websocket_target_names_the_same_host_as_the_field(
    named_gateway: ServedGateway,
) -> None:
    fields = (
        "Upgrade: websocket", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )  # fmt: skip
    address = named_gateway.gateway.http_address
    for name, status in (("localhost", 101), ("evil", 400)):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = (
            f"GET http://{name}/v1/realtime HTTP/1.1", "Host: localhost", "Connection: Upgrade",
            *fields, "", "",
        )  # fmt: skip
        writer.write("\r\n".join(lines).encode())
        assert status_of((await reader.readline()).decode()) == status, name
        writer.close()


async def test_http_1_0_needs_no_host(named_gateway: ServedGateway) -> None:
    address = named_gateway.gateway.http_address
    assert status_of(await ask_raw(address, path="/health", version="1.0")) == 200


async def test_websocket_with_two_keys_is_rejected(named_gateway: ServedGateway) -> None:
    url = f"ws://{named_gateway.gateway.http_address}/v1/realtime"
    first, second = "openai-insecure-api-key.a", "openai-insecure-api-key.b"
    for offered, headers in (
        (["realtime", first, second], {}),
        (["realtime", first], {"Authorization": "Bearer b"}),
    ):
        protocols: list[Any] = list(offered)
        with pytest.raises(websockets.InvalidStatus) as caught:
            async with websockets.connect(url, subprotocols=protocols, additional_headers=headers):
                pass
        assert caught.value.response.status_code == 400


async def test_grpc_call_with_two_keys_is_rejected(named_gateway: ServedGateway) -> None:
    metadata = (("authorization", "Bearer a"), ("authorization", "Bearer b"))
    async with grpc.aio.insecure_channel(named_gateway.gateway.grpc_address) as channel:
        for method in ("GetServerInfo", "Generate", "Converse"):
            call: Any = channel.unary_stream(
                f"/antiphon.v1.SpeechService/{method}",
                request_serializer=speech_pb2.GetServerInfoRequest.SerializeToString,
            )(speech_pb2.GetServerInfoRequest(), metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method


async def test_health_names_addresses_of_stages_to_those_with_a_key(tmp_path: Path) -> None:
    path, key = tmp_path / "keys", new_key()
    path.write_bytes(msgspec.yaml.encode({"keys": [{"name": "app", "sha256": digest_of(key)}]}))
    async with serve_gateway(keys_file=str(path)) as served:
        addresses = [stage.address for stage in served.fakes.by_role.values()]
        for headers in ({}, {"authorization": "Bearer wrong"}):
            response = await served.http.get("/health", headers=headers)
            assert response.status_code == 200
            assert set(response.json()["stages"]) == set(served.fakes.by_role)
            assert not any(address in response.text for address in addresses)
        known = await served.http.get("/health", headers={"authorization": f"Bearer {key}"})
        assert all(address in known.text for address in addresses)
        await served.fakes.by_role["code2wav"].die()
        while served.gateway.fleet.fault() is None:
            await served.gateway.fleet.wait_changed()
        down = await served.http.get("/health?output=audio")
        assert not any(address in down.text for address in addresses), down.text
    async with serve_gateway() as served:
        text = (await served.http.get("/health")).text
        assert all(stage.address in text for stage in served.fakes.by_role.values())


async def test_metrics_have_an_address_of_their_own() -> None:
    async with serve_gateway(metrics_listen="127.0.0.1:0") as served, httpx.AsyncClient() as http:
        assert (await served.http.get("/metrics")).status_code == 404
        page = await http.get(f"http://{served.gateway.metrics_address}/metrics")
        assert page.status_code == 200
        assert "antiphon_gateway_connections" in page.text
        for path in ("/v1/models", "/health", "/"):
            other = await http.get(f"http://{served.gateway.metrics_address}{path}")
            assert other.status_code == 404
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as http:
            await http.get(f"http://{served.gateway.metrics_address}/metrics")


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:http"])
async def test_wrong_address_of_metrics_is_an_error_at_the_start(listen: str) -> None:
    async with FakeStages() as fakes:
        with pytest.raises(InvalidArgument, match=r"gateway\.metrics_listen"):
            Gateway(deployment_of(fakes, metrics_listen=listen))


async def test_taken_address_of_metrics_is_an_error_at_the_start() -> None:
    async with FakeStages() as fakes, serve_gateway() as served:
        taken = served.gateway.http_address
        with pytest.raises(Unavailable, match=r"gateway\.metrics_listen"):
            async with Gateway(deployment_of(fakes, metrics_listen=taken)):
                pass
