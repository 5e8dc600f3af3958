from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.realtime.__main__ import (
    BARE,
    CONNECTIONS,
    CPU_FIGURE,
    TAKEN,
    bare_process,
    check_equal_work,
    measure,
)
from benchmarks.runtime.gateway import gateway_without_models

TURN = 40
EVENTS = CONNECTIONS * (2 * TURN + 1)


@dataclass
class Relay:
    """Forwards TCP connections and counts what clients send after the heads of their requests."""

    received: list[int] = field(default_factory=list)
    port: int = 0

    async def pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        number = len(self.received)
        if counted:
            self.received.append(0)
            target.write(await source.readuntil(b"\r\n\r\n"))
        while data := await source.read(1 << 16):
            if counted:
                self.received[number] += len(data)
            target.write(data)
            await target.drain()
        target.close()


@asynccontextmanager
async def relay_to(port: int) -> AsyncIterator[Relay]:
    relay = Relay()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            relay.pump(reader, ours[1], counted=True), relay.pump(ours[0], writer, counted=False)
        )

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        relay.port = server.sockets[0].getsockname()[1]
        yield relay


async def measured_through_relay(port: int, side: str) -> tuple[Figures, list[int]]:
    async with relay_to(port) as relay:
        url = f"ws://127.0.0.1:{relay.port}/v1/realtime"
        figures = await measure(url, [os.getpid()], side, EVENTS, TURN)
    return figures, relay.received


async def test_both_sides_get_the_same_bytes_and_answer_as_many_messages() -> None:
    async with bare_process() as (url, _):
        bare, bare_bytes = await measured_through_relay(
            int(url.removesuffix("/v1/realtime").rpartition(":")[2]), BARE
        )
    async with gateway_without_models(1, slots=2) as gateway:
        ours, our_bytes = await measured_through_relay(
            int(gateway.http_address.rpartition(":")[2]), TAKEN
        )
    assert len(bare_bytes) == len(our_bytes) == CONNECTIONS
    assert bare_bytes == our_bytes
    assert bare["bytes sent"] < sum(our_bytes)
    # Per connection: the session's two, one for the warm-up, and three for the events.
    assert bare["messages received"] == ours["messages received"] == CONNECTIONS * 6
    for name in ("messages sent", "bytes sent"):
        assert bare[name] == ours[name]


async def test_a_bare_side_that_answers_otherwise_is_rejected() -> None:
    def side(name: str, received: int, *against: str) -> Side:
        figures = {
            CPU_FIGURE: 1.0,
            "messages sent": 2,
            "bytes sent": 3,
            "messages received": received,
        }
        return Side(name, lambda: figures, against)

    comparison = Comparison([side(BARE, 4), side(TAKEN, 5, BARE)], show=lambda _: None)
    await comparison.run(1)
    with pytest.raises(RuntimeError, match="different work: messages received"):
        check_equal_work(comparison)
