"""Gateways that listen on the same ports of one host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

import antiphon
from antiphon.deployment.sharing_config import check_shared_ports
from antiphon.errors import InvalidArgument, Unavailable
from antiphon.transport.listening import reserve_port
from antiphon_gateway import server
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import CODE2WAV, TEXTS, THINKER, USUAL, FakeStages
from tests.contract.paused_thinker import Pause
from tests.contract.served_gateway import MESSAGES, MODEL, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_S = 240.0
BODY = {"model": MODEL, "messages": MESSAGES}


@dataclass
class OnePort:
    """Two gateways with the same addresses."""

    fakes: FakeStages
    gateways: list[Gateway]
    http: str
    grpc: str
    serving: list[Gateway]

    async def stop(self, gateway: Gateway) -> None:
        """Stop one of them as a signal does."""
        self.serving.remove(gateway)
        await gateway.__aexit__(None, None, None)

    def answered(self, api: str) -> list[float]:
        """How many requests each gateway has answered."""
        return [
            sum(
                sample.value
                for family in each.metrics.registry.collect()
                for sample in family.samples
                if sample.name == "antiphon_gateway_requests_total" and sample.labels["api"] == api
            )
            for each in self.gateways
        ]


@asynccontextmanager
async def one_port() -> AsyncIterator[OnePort]:
    with ExitStack() as held:
        ports = []
        for _ in range(2):
            sockets = reserve_port("127.0.0.1", 0)
            ports.append(f"127.0.0.1:{sockets[0].getsockname()[1]}")
            for each in sockets:
                held.enter_context(each)
        http, grpc = ports
        async with asyncio.timeout(LONG_S), FakeStages() as fakes:
            deployment = deployment_of(
                fakes,
                http_listen=http,
                grpc_listen=grpc,
                metrics_listen="127.0.0.1:0",
                drain_s=LONG_S,
                sharing_ports=True,
            )
            port = OnePort(fakes, [Gateway(deployment) for _ in range(2)], http, grpc, [])
            try:
                for gateway in port.gateways:
                    await gateway.__aenter__()
                    port.serving.append(gateway)
                    await gateway.wait_ready()
                yield port
            finally:
                await asyncio.gather(*map(port.stop, list(port.serving)))


async def chat(address: str) -> httpx.Response:
    """A request on a connection of its own."""
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=LONG_S) as http:
        return await http.post("/v1/chat/completions", json=BODY)


async def generate(address: str) -> str:
    """The text of a call on a connection of its own."""
    async with antiphon.AsyncClient(address) as client:
        return (await client.generate("Hi", modalities=("text",)).collect()).text


async def test_new_connections_are_distributed_among_the_gateways() -> None:
    async with one_port() as port:
        while not all(port.answered("http")):
            assert (await chat(port.http)).status_code == 200
        while not all(port.answered("grpc")):
            assert await generate(port.grpc) == "".join(TEXTS)


async def test_gateway_that_stops_leaves_new_connections_to_the_other_and_ends_its_answer() -> None:
    async with one_port() as port:
        port.fakes[THINKER].script = pause = Pause()
        answering = asyncio.create_task(chat(port.http))
        await pause.begun.wait()
        port.fakes[THINKER].script = USUAL[THINKER]
        (leaving,) = [each for each in port.gateways if each.calls.in_flight]
        stopping = asyncio.create_task(port.stop(leaving))
        await leaving.calls.wait_closing()
        for _ in range(16):
            assert (await chat(port.http)).status_code == 200
            assert await generate(port.grpc) == "".join(TEXTS)
        assert not answering.done()
        pause.go_on.set()
        assert (await answering).status_code == 200
        await stopping


async def test_open_grpc_connection_moves_to_the_other_gateway_when_its_own_stops() -> None:
    async with one_port() as port, antiphon.AsyncClient(port.grpc) as client:
        assert (await client.generate("Hi", modalities=("text",)).collect()).text
        (leaving,) = [
            each for each, count in zip(port.gateways, port.answered("grpc"), strict=True) if count
        ]
        await port.stop(leaving)
        assert (await client.generate("Hi", modalities=("text",)).collect()).text
        assert all(port.answered("grpc"))


async def test_metrics_are_at_the_address_of_each_gateway_alone() -> None:
    async with one_port() as port, httpx.AsyncClient() as http:
        for _ in range(4):
            refused = await http.get(f"http://{port.http}/metrics", headers={"connection": "close"})
            assert refused.status_code == 404
            assert "gateway.metrics_listen" in refused.json()["error"]["message"]
        addresses = {each.metrics_address for each in port.gateways}
        assert len(addresses) == 2
        for address in addresses:
            assert (await http.get(f"http://{address}/metrics")).status_code == 200


async def test_port_is_not_shared_with_a_gateway_that_shares_none() -> None:
    async with one_port() as port:
        for taken in ({"http_listen": port.http}, {"grpc_listen": port.grpc}):
            with pytest.raises(Unavailable, match="in use"):
                async with Gateway(deployment_of(port.fakes, **taken)):
                    pass


@pytest.mark.parametrize(
    ("metrics_listen", "scaler_listen", "platform", "field"),
    [
        ("127.0.0.1:0", "", "darwin", "gateway.sharing.ports"),
        ("", "", "linux", "gateway.metrics_listen"),
        ("127.0.0.1:0", "127.0.0.1:0", "linux", "gateway.scaler.listen"),
    ],
)
async def test_what_does_not_go_with_shared_ports_is_refused(
    metrics_listen: str, scaler_listen: str, platform: str, field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_shared_ports(metrics_listen, scaler_listen, platform=platform)
    assert caught.value.field == field


async def test_gateway_shares_its_ports_when_it_knows_its_stages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "STAGES_S", LONG_S)
    async with asyncio.timeout(LONG_S), FakeStages() as fakes:
        await fakes[CODE2WAV].set_serving(False)
        (reserved,) = reserve_port("127.0.0.1", 0)
        with reserved:
            address = f"127.0.0.1:{reserved.getsockname()[1]}"
            gateway = Gateway(
                deployment_of(
                    fakes, http_listen=address, metrics_listen="127.0.0.1:0", sharing_ports=True
                )
            )
            starting = asyncio.create_task(gateway.__aenter__())
            await gateway.fleet.wait_changed()
            with pytest.raises(httpx.ConnectError):
                await chat(address)
            await fakes[CODE2WAV].set_serving(True)
            await starting
            assert (await chat(address)).status_code == 200
            await gateway.__aexit__(None, None, None)


async def test_gateway_shares_its_ports_in_time_even_if_a_stage_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "STAGES_S", 0.0)
    async with asyncio.timeout(LONG_S), FakeStages() as fakes:
        await fakes[CODE2WAV].set_serving(False)
        async with (
            Gateway(
                deployment_of(fakes, metrics_listen="127.0.0.1:0", sharing_ports=True)
            ) as gateway,
            httpx.AsyncClient() as http,
        ):
            assert (await http.get(f"http://{gateway.http_address}/health")).status_code == 503
