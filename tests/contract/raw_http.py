"""HTTP on a bare socket: what a well-behaved client would never send, or never read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.contract.served_gateway import MESSAGES, MODEL, ServedGateway

PATH = "/v1/chat/completions"


def chat_body(**fields: Any) -> bytes:
    """A chat request that is good but for the given fields."""
    return json.dumps({"model": MODEL, "messages": MESSAGES, **fields}).encode()


def post(body: bytes, *, length: int | None = None, headers: str = "") -> bytes:
    """A whole request; `length` announces another length."""
    size = len(body) if length is None else length
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {size}\r\n\r\n"
    return head.encode() + body


@dataclass
class RawClient:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """The next response with a length: status, headers, body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        line, *fields = head.strip().split("\r\n")
        headers = {k.lower(): v for k, _, v in (each.partition(": ") for each in fields)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(line.split()[1]), headers, body

    async def wait_cut(self) -> bytes:
        """What comes until the gateway ends the connection."""
        parts = []
        try:
            while part := await self.reader.read(1 << 16):
                parts.append(part)
        except ConnectionError as error:
            parts.append(type(error).__name__.encode())
        return b"".join(parts)


@asynccontextmanager
async def connect(address: str, receive_buffer: int) -> AsyncIterator[RawClient]:
    """A connection; with `receive_buffer` this host takes little for a client that reads not."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    try:
        sock.setblocking(False)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 12)
    except BaseException:
        sock.close()
        raise
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


def raw_client(
    served: ServedGateway, *, receive_buffer: int = 0
) -> AbstractAsyncContextManager[RawClient]:
    """A connection to a gateway."""
    return connect(served.gateway.http_address, receive_buffer)
