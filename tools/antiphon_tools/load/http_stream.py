"""A minimal HTTP/1.1 client for loading a server with streamed responses.

Each connection is closed after a single request, which keeps requests independent of each other and
the driver's own overhead low. Redirects and compression are not supported.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from antiphon.errors import DataLoss, InvalidArgument
from antiphon_tools.load.openai_stream import error_of
from antiphon_tools.load.trust import Trust

MAX_LINE_BYTES = 64 << 20
DEFAULT_PORTS = {"http": 80, "https": 443}
_DATA = b"data:"


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """The address of a server, and the TLS context and the API key to use."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    api_key: str = field(default="", repr=False)

    @classmethod
    def parse(
        cls,
        url: str,
        trust: Trust = Trust(),  # noqa: B008  it is frozen
        api_key: str = "",
    ) -> HttpAddress:
        """Parse a URL such as `http://host:port` or `https://host:port`.

        Raises `InvalidArgument` if the URL is malformed.
        """
        parts = urlsplit(url)
        known = parts.scheme in DEFAULT_PORTS
        if not known or not parts.hostname or parts.path not in ("", "/"):
            raise InvalidArgument(
                f"{url}: must have the form http://host:port or https://host:port"
            )
        tls = trust.over_http() if parts.scheme == "https" else None
        return cls(parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme], tls, api_key)

    def __str__(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.host}:{self.port}"


async def get(address: HttpAddress, path: str) -> bytes:
    """Return the body of a page.

    Raises the typed error if the status is not 200, `OSError` or `EOFError` if the connection
    fails, and `DataLoss` if the response is not valid HTTP.
    """
    async with _connection(address) as (reader, writer):
        writer.write(_head("GET", address, path))
        body = await _body_of_ok(reader)
        return b"".join([piece async for piece in body])


async def server_sent_events(
    address: HttpAddress, path: str, body: bytes
) -> AsyncGenerator[bytes, None]:
    """Send a JSON body with POST and yield the data of each event in the response.

    Raises the same errors as `get`.
    """
    async with _connection(address) as (reader, writer):
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        writer.write(_head("POST", address, path, fields) + body)
        pending = b""
        async for piece in await _body_of_ok(reader):
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                if line.startswith(_DATA):
                    yield line[len(_DATA) :].strip()


@contextlib.asynccontextmanager
async def _connection(
    address: HttpAddress,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Return a connection that is closed immediately afterwards."""
    reader, writer = await asyncio.open_connection(
        address.host, address.port, limit=MAX_LINE_BYTES, ssl=address.tls
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _head(
    method: str, address: HttpAddress, path: str, fields: Mapping[str, str] | None = None
) -> bytes:
    given = {
        "host": f"{address.host}:{address.port}",
        "connection": "close",
        "accept": "text/event-stream, application/json",
        **(fields or {}),
    }
    if address.api_key:
        given["authorization"] = f"Bearer {address.api_key}"
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


async def _body_of_ok(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Return the body of the response in pieces. Raises an error if the status is not 200."""
    status, fields = await _response_head(reader)
    if fields.get("transfer-encoding", "").lower() == "chunked":
        body = _chunked(reader)
    else:
        body = _plain(reader, int(fields["content-length"]) if "content-length" in fields else -1)
    if status != 200:
        raise error_of(status, b"".join([piece async for piece in body]))
    return body


async def _response_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.strip().split("\r\n")
    version, _, rest = status_line.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise DataLoss(f"the server responded with {status_line!r}")
    pairs = (line.partition(":") for line in lines)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := _chunk_size(await reader.readline()):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


def _chunk_size(line: bytes) -> int:
    """Return the size of the next chunk, or 0 at the end of the body or the connection."""
    try:
        return int(line.partition(b";")[0] or b"0", 16)
    except ValueError:
        raise DataLoss(f"a chunk of the response begins with {line!r}") from None


async def _plain(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    """Yield a body of known size, or a body that ends with the connection if `size` is -1."""
    if size >= 0:
        yield await reader.readexactly(size)
        return
    while piece := await reader.read(1 << 16):
        yield piece
