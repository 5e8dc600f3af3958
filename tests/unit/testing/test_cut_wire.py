"""The proxy that tests and chaos put in front of a service."""

from __future__ import annotations

import asyncio
import contextlib

from antiphon_testkit.cut_wire import CutWire


class LateWire(CutWire):
    """Is closed at the moment when somebody is let in."""

    closing: asyncio.Task[None]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.closing = asyncio.create_task(self.close())
        super()._accept(reader, writer)


async def test_who_is_let_in_while_it_closes_does_not_stay() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asyncio.timeout(120), server:
        wire = LateWire(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await wire.open()
        host, _, port = wire.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        # A reset is as good an end.
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await wire.closing
        writer.close()
