"""Clients of IPv4 and of IPv6 at one gateway, which has them as its settings say."""

from __future__ import annotations

import json
import socket

import httpx
import pytest
from websockets.asyncio.client import connect

import antiphon
from antiphon.deployment.address import host_and_port
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.errors import InvalidArgument, Unavailable
from antiphon.transport.listening import listen_hosts, listen_sockets
from antiphon_gateway.server import Gateway
from tests.contract.served_gateway import MESSAGES, MODEL, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

V4, V6 = "127.0.0.1", "[::1]"
BOTH = pytest.mark.skipif(len(listen_hosts("localhost")) < 2, reason="has one address family")


@BOTH
@pytest.mark.parametrize(
    ("listen", "reached"),
    [
        ("localhost", (V4, V6)),
        ("[::]", (V4, V6)),
        ("[::1]", (V6,)),
        ("127.0.0.1", (V4,)),
    ],
)
async def test_clients_of_each_family_are_served(listen: str, reached: tuple[str, ...]) -> None:
    at = {"http_listen": f"{listen}:0", "grpc_listen": f"{listen}:0"}
    async with serve_gateway(**at, metrics_listen=f"{listen}:0") as served:
        ports = {
            name: host_and_port(getattr(served.gateway, name), field=name)[1]
            for name in ("http_address", "grpc_address", "metrics_address")
        }
        for host in (V4, V6):
            is_served = host in reached
            url = f"http://{host}:{ports['http_address']}"
            metrics = f"http://{host}:{ports['metrics_address']}/metrics"
            async with httpx.AsyncClient(base_url=url) as http:
                if not is_served:
                    with pytest.raises(httpx.ConnectError):
                        await http.get("/v1/models")
                    with pytest.raises(httpx.ConnectError):
                        await http.get(metrics)
                    continue
                # `Host` is the address, which needs no setting.
                answer = await http.post(
                    "/v1/chat/completions", json={"model": MODEL, "messages": MESSAGES}
                )
                assert answer.status_code == 200, answer.text
                assert (await http.get(metrics)).status_code == 200
            realtime = f"{url.replace('http', 'ws')}/v1/realtime"
            async with connect(realtime, additional_headers={"origin": url}) as websocket:
                assert json.loads(await websocket.recv())["type"] == "session.created"
            async with antiphon.AsyncClient(f"{host}:{ports['grpc_address']}") as client:
                assert (await client.generate("Hi").collect()).text


async def test_what_listens_by_default_has_both_families() -> None:
    gateway, stage = GatewayConfig(), StageConfig()
    for address in (gateway.http_listen, gateway.grpc_listen, stage.listen):
        assert host_and_port(address, field="")[0] == "localhost"


@BOTH
async def test_a_port_that_one_family_has_taken_is_refused() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                listen_sockets("localhost", port)
            for served in ("http_listen", "grpc_listen"):
                with pytest.raises(Unavailable, match=f"gateway.{served}.*{port}"):
                    async with serve_gateway(**{served: f"localhost:{port}"}):
                        raise AssertionError("listens at a port that is taken")


@pytest.mark.parametrize("address", ["::1:8000", "fe80::1:50051", "::"])
async def test_an_address_without_brackets_is_refused_with_the_remedy(address: str) -> None:
    stages = {"stage": StageConfig(addresses=("127.0.0.1:1",))}
    with pytest.raises(InvalidArgument, match=r"gateway.http_listen"):
        Gateway(Deployment(stages=stages, gateway=GatewayConfig(http_listen=address)))


@pytest.mark.parametrize("address", ["::1:50050x", "[::1]", "[::1]:50050", "dns:///[::1]:50050"])
async def test_the_sdk_takes_addresses_in_brackets(address: str) -> None:
    if address.endswith("x"):
        with pytest.raises(InvalidArgument, match="address"):
            antiphon.AsyncClient(address)
    else:
        await antiphon.AsyncClient(address).close()
