"""An HTTP connection that is kept open between requests.

httpx needs 5 to 30 ms of CPU time for a streamed answer, depending on the number of connections,
because it searches all of them for each request. This is more than the gateway and the stages need.
The benchmark therefore uses httptools, whose parser is written in C.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping

import httptools

OnBody = Callable[[bytes], None]


class KeepAlive(asyncio.Protocol):
    """A connection, on which one request is sent at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._address = ""
        self._parser: httptools.HttpResponseParser
        self._on_head: Callable[[], None]
        self._on_body: OnBody
        self._ended: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, address: str) -> KeepAlive:
        """Connect to an address and send a first request, so that the server has handled one."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, opened = await loop.create_connection(cls, host, int(port))
        opened._address = address
        await opened.request("GET", "/health")
        return opened

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        on_head: Callable[[], None] = lambda: None,
        on_body: OnBody = lambda _: None,
    ) -> None:
        """Send a request and wait until its response has ended. `on_head` is called when the head
        has arrived, and `on_body` is called with each piece of the body.

        Raises `RuntimeError` if the status isn't 200, and `ConnectionError` if the connection is
        lost.
        """
        assert self._transport is not None
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._address}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._on_head, self._on_body = on_head, on_body
        self._parser = httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode() + content)
        await self._ended

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse a piece of the response. The parser calls the methods that begin with `on_`."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the current request with an error."""
        self._end(exc or ConnectionResetError("the server has closed the connection"))

    def on_headers_complete(self) -> None:
        """Check the status."""
        if (status := self._parser.get_status_code()) != 200:
            self._end(RuntimeError(f"the server has answered with the status {status}"))
        self._on_head()

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body."""
        self._on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
