"""The address of a Service, as kube-proxy makes it: each new connection goes to a ready pod.

What is connected stays where it is, also when its pod is leaving. Without a ready pod connections
are reset.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from types import TracebackType

PIECE_BYTES = 1 << 16


class ServiceAddress:
    """Listens at `address` from entering to leaving; `pods` tells who is ready, as host:port."""

    def __init__(self, pods: Callable[[], Sequence[str]]) -> None:
        self._pods = pods
        self._turns = itertools.count()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""

    async def __aenter__(self) -> ServiceAddress:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            pods = self._pods()
            if not pods:
                raise ConnectionRefusedError
            host, port = pods[next(self._turns) % len(pods)].rsplit(":", 1)
            pod_reader, pod_writer = await asyncio.open_connection(host, int(port))
            writers.append(pod_writer)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_pass_on(reader, pod_writer))
                ways.create_task(_pass_on(pod_reader, writer))
        except* OSError:
            pass  # One side is reset, and so is the other.
        finally:
            for each in writers:
                each.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes, and then the end of them."""
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
