"""When a gRPC server has closed."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from antiphon.transport.listening import wait_closed


@pytest.mark.asyncio
async def test_who_waits_is_told_that_a_server_has_closed() -> None:
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    given_up, waiting = (asyncio.create_task(wait_closed(server)) for _ in range(2))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert not waiting.done()
    async with asyncio.timeout(120):
        await server.stop(0)
        await waiting
