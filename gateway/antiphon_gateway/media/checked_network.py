"""Connections to validated addresses, with limits on the responses.

httpcore2 opens all connections through its network backend, so a request can only reach addresses
that `is_allowed` has accepted. This is true for host names, literal addresses and redirects. A name
is resolved once per request, and the connection uses one of the resulting addresses.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import httpcore2

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_HEAD_BYTES = 64 << 10
"""The maximum size of a response's status line and header fields, including those of interim
responses.
"""

FRAMING_BYTES = 32 << 10
"""The maximum size of all chunk sizes, chunk extensions and trailers. A quarter of the size of the
content is added to this.
"""


class UrlFault(Exception):
    """The reason why a URL can't be used. It is converted to an `InvalidArgument` with the field of
    the URL.
    """


@dataclass(slots=True)
class ResponseMeter:
    """Counts the bytes of a single response, both on the connection and in its content.

    `took` is called with the number of bytes that have arrived and can raise an error.
    """

    took: Callable[[int], None]
    wire_bytes: int = 0
    content_bytes: int = 0
    head_bytes: int = 0
    ended: bool = False

    def head_is_complete(self) -> None:
        """Record that everything from now on is content and its framing."""
        self.head_bytes = self.wire_bytes

    def check(self) -> None:
        """Raise `UrlFault` if the head or the framing is too large."""
        if not self.head_bytes:
            if self.wire_bytes > MAX_HEAD_BYTES:
                raise UrlFault(
                    "could not be fetched: the response headers have more than "
                    f"{MAX_HEAD_BYTES} bytes"
                )
            return
        framing = self.wire_bytes - self.head_bytes - self.content_bytes
        if framing > FRAMING_BYTES + self.content_bytes // 4:
            raise UrlFault("could not be fetched: the response has more framing than content")

    def read(self, size: int) -> None:
        """Count bytes that have arrived."""
        self.wire_bytes += size
        self.ended = not size
        self.took(self.wire_bytes)


class CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Opens the connections for one request and measures the response. Raises `UrlFault` if an
    address isn't allowed.
    """

    def __init__(
        self, resolve: Resolve, is_allowed: Callable[[Address], bool], meter: ResponseMeter
    ) -> None:
        self._resolve = resolve
        self._is_allowed = is_allowed
        self._meter = meter

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to an address of `host`. Raises `UrlFault` or `OSError` if that isn't
        possible.
        """
        try:
            found = await self._resolve(host, port)
        except UnicodeError:
            # The name contains an empty label, or one that is longer than 63 characters.
            raise UrlFault("has a host name that can't be resolved") from None
        addresses = [ip_address(each) for each in found]
        # If a name has both allowed and forbidden addresses, it is probably an attack.
        if not addresses or not all(map(self._is_allowed, addresses)):
            raise UrlFault(
                "has no public address; to allow other networks, add them to gateway.fetch.networks"
            )
        return MeteredStream(
            *await asyncio.open_connection(str(addresses[0]), port), meter=self._meter
        )


class MeteredStream(httpcore2.AsyncNetworkStream):
    """A connection that counts its bytes. The caller has to limit the time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, meter: ResponseMeter
    ) -> None:
        self._reader, self._writer, self._meter = reader, writer, meter

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes, or b"" at the end. Raises `UrlFault` if the response is
        too long.
        """
        self._meter.check()
        data = await self._reader.read(max_bytes)
        self._meter.read(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send data."""
        self._writer.write(buffer)
        await self._writer.drain()

    async def aclose(self) -> None:
        """Close the connection right away. Any data that hasn't been read isn't needed."""
        self._writer.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Continue over TLS. Raises `ssl.SSLError`, which is an `OSError`, if this fails."""
        await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        """Return None, because none of this information is needed for HTTP/1.1."""
        return None
