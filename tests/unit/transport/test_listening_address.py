from __future__ import annotations

import grpc
import pytest

from antiphon.errors import InvalidArgument, Unavailable
from antiphon.transport.channel import CHANNEL_OPTIONS, SERVER_OPTIONS
from antiphon.transport.listening import listen_at

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
        f"{FIELD}: cannot listen on {address}; choose another port, or stop what listens there"
    )


@pytest.mark.parametrize("wrong", ["9464", "127.0.0.1:grpc"])
async def test_error_names_the_setting_when_it_is_no_address(wrong: str) -> None:
    with pytest.raises(InvalidArgument, match="is not host:port") as caught:
        listen_at(grpc.aio.server(options=SERVER_OPTIONS), wrong, field=FIELD)
    assert caught.value.field == FIELD


async def test_error_names_the_port_when_it_is_out_of_range() -> None:
    with pytest.raises(InvalidArgument, match="port 65536 is not 0 to 65535") as caught:
        listen_at(grpc.aio.server(options=SERVER_OPTIONS), "[::1]:65536", field=FIELD)
    assert caught.value.field == FIELD
