from __future__ import annotations

import socket
from contextlib import ExitStack

import grpc
import pytest

from antiphon.errors import InvalidArgument, Unavailable
from antiphon.transport.channel import CHANNEL_OPTIONS, SERVER_OPTIONS
from antiphon.transport.listening import listen_at, listen_hosts

FIELD = "gateway.grpc_listen"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
async def test_address_is_one_that_a_client_reaches(host: str) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    address = listen_at(server, f"{host}:0", field=FIELD)
    # A name may resolve to a family that this host lacks, so the address has none.
    loopback = ("127.0.0.1", "[::1]")
    reached, _, port = address.rpartition(":")
    assert reached in (loopback if host == "localhost" else (host,))
    assert port != "0"
    await server.start()
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        await channel.channel_ready()
    await server.stop(None)


async def test_error_names_the_setting_and_the_remedy_when_an_address_is_taken() -> None:
    first = grpc.aio.server(options=SERVER_OPTIONS)
    address = listen_at(first, "[::1]:0", field=FIELD)
    await first.start()
    with pytest.raises(Unavailable) as caught:
        listen_at(grpc.aio.server(options=SERVER_OPTIONS), address, field=FIELD)
    await first.stop(None)
    assert caught.value.field == FIELD
    assert caught.value.message == (
        f"{FIELD}: can't listen on {address}; choose another port, or stop the process that uses it"
    )


@pytest.mark.parametrize("wrong", ["9464", "127.0.0.1:grpc"])
async def test_error_names_the_setting_when_it_is_no_address(wrong: str) -> None:
    with pytest.raises(InvalidArgument, match="is not HOST:PORT") as caught:
        listen_at(grpc.aio.server(options=SERVER_OPTIONS), wrong, field=FIELD)
    assert caught.value.field == FIELD


async def test_error_names_the_port_when_it_is_out_of_range() -> None:
    with pytest.raises(
        InvalidArgument, match="the port must be from 0 to 65535, got 65536"
    ) as caught:
        listen_at(grpc.aio.server(options=SERVER_OPTIONS), "[::1]:65536", field=FIELD)
    assert caught.value.field == FIELD


class Raced:
    """A server whose first port of IPv6 is taken by another process at the last moment."""

    def __init__(self, server: grpc.aio.Server, until: ExitStack) -> None:
        self._server = server
        self._until = until
        self.taken: int | None = None

    def add_insecure_port(self, address: str) -> int:
        if self.taken is None and address.startswith("[::1]"):
            self.taken = int(address.rpartition(":")[2])
            other = socket.create_server(("::1", self.taken), family=socket.AF_INET6)
            self._until.enter_context(other)
        port: int = self._server.add_insecure_port(address)
        return port


@pytest.mark.skipif(len(listen_hosts("localhost")) < 2, reason="needs both families")
async def test_another_port_is_drawn_when_one_is_taken_in_the_other_family() -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    with ExitStack() as until:
        raced = Raced(server, until)
        address = listen_at(raced, "localhost:0", field=FIELD)  # type: ignore[arg-type]
        assert raced.taken is not None
        port = int(address.rpartition(":")[2])
        assert port != raced.taken
        await server.start()
        for host in listen_hosts("localhost"):
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            async with grpc.aio.insecure_channel(where, options=CHANNEL_OPTIONS) as channel:
                await channel.channel_ready()
        await server.stop(None)
