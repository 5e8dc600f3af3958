"""Files that requests name by URL, fetched from public addresses alone.

A name is resolved once for each step, everything that it resolves to is checked, and the
connection goes to an address that was: so neither a redirect nor a name that changes its mind
leads into the operator's own network.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, urljoin, urlsplit

import httptools

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import InvalidArgument, NotImplementedYet, told
from antiphon.version import VERSION

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_REDIRECTS = 3
MAX_URL_CHARS = 8192
MAX_HEAD_BYTES = 64 << 10
_RESOLVING_THREADS = 4
_PIECE_BYTES = 64 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
# What is public of IPv6, and what of that holds an IPv4 address or a tunnel's end.
_PUBLIC_V6 = ip_network("2000::/3")
_TUNNELS_V6 = tuple(map(ip_network, ("2001::/32", "2002::/16", "2001:db8::/32")))


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    """A file that is somewhere else."""

    url: str


class UrlFault(Exception):
    """Why a URL gives no file; becomes an `InvalidArgument` of its field."""


class UrlFetcher:
    """Fetches the files of requests, as far as the deployment allows it.

    `resolve` gives the addresses of a name; the system's resolver by default, on threads of its
    own, so that slow names hold up other names and nothing else. Raises `InvalidArgument` for
    networks that are none.
    """

    def __init__(self, config: GatewayConfig, resolve: Resolve | None = None) -> None:
        self._config = config
        self._resolve = resolve or self._resolved_by_system
        self._pool = ThreadPoolExecutor(_RESOLVING_THREADS, "resolve")
        self._tls = ssl.create_default_context() if config.fetch_urls else None
        try:
            self._networks = tuple(map(ip_network, config.fetch_networks))
        except ValueError as error:
            field = "gateway.fetch_networks"
            raise InvalidArgument(f"{field}: {error}", field=field) from error

    async def fetch(self, remote: RemoteUrl, field: str, left_bytes: int) -> bytes:
        """The file, of at most so many bytes. Raises `InvalidArgument` that names the field, and
        `NotImplementedYet` where nothing is fetched."""
        if not self._config.fetch_urls:
            raise NotImplementedYet(
                f"{field}: nothing is fetched from the network; send a data URL, or set "
                "gateway.fetch_urls",
                field=field,
            )
        try:
            async with asyncio.timeout(self._config.fetch_timeout_s):
                return await self._follow(remote.url, left_bytes)
        except TimeoutError:
            why = f"did not come within {self._config.fetch_timeout_s:g} s"
        except UrlFault as fault:
            why = str(fault)
        except (OSError, httptools.HttpParserError) as error:
            why = f"could not be fetched: {type(error).__name__}"
        raise InvalidArgument(f"{field}: {why}", field=field)

    def is_allowed(self, address: Address) -> bool:
        """Whether it is public, or the deployment names its network."""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._networks):
            return True
        if isinstance(address, IPv6Address):
            within = any(address in network for network in _TUNNELS_V6)
            return address in _PUBLIC_V6 and not within
        return address.is_global and not address.is_multicast

    async def _follow(self, url: str, left_bytes: int) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            parts = _checked(url)
            response = await self._ask(parts, left_bytes)
            if response.status not in _REDIRECTS:
                return response.file()
            url = urljoin(url, response.location)
        raise UrlFault(f"leads on more than {MAX_REDIRECTS} times")

    async def _ask(self, parts: SplitResult, left_bytes: int) -> _Response:
        """The response to one request, to an address that was checked."""
        port = parts.port or _PORTS[parts.scheme]
        host = parts.hostname or ""
        addresses = [ip_address(each) for each in await self._resolve(host, port)]
        # Some good ones among bad ones are no accident.
        if not addresses or not all(map(self.is_allowed, addresses)):
            raise UrlFault("has no public address; gateway.fetch_networks names others to allow")
        tls = self._tls if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            str(addresses[0]), port, ssl=tls, server_hostname=host if tls else None
        )
        try:
            writer.write(_request(parts))
            await writer.drain()
            return await _read(reader, left_bytes)
        finally:
            writer.transport.abort()

    async def _resolved_by_system(self, host: str, port: int) -> Sequence[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return [str(address[0]).partition("%")[0] for *_, address in found]

        return await asyncio.get_running_loop().run_in_executor(self._pool, look_up)

    def close(self) -> None:
        """Look up nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Response:
    """A response as httptools parses it."""

    def __init__(self, most_bytes: int) -> None:
        self.status = 0
        self.location = ""
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._most_bytes = most_bytes
        self._encoding = b""
        self._sized = False
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._parser.feed_data(data)
        if self._size > self._most_bytes:
            raise UrlFault(
                f"has more than the {self._most_bytes} bytes that are left of "
                "gateway.max_fetch_bytes"
            )

    def end(self) -> None:
        """The connection has ended, which is how a body of no stated length does."""
        self.complete = bool(self.status) and not self._sized
        if not self.complete:
            raise UrlFault("broke off")

    def file(self) -> bytes:
        """The body of a good response."""
        if self.status != 200:
            raise UrlFault(f"could not be fetched: the server answered {self.status}")
        if self._encoding.lower() not in (b"", b"identity"):
            raise UrlFault("came compressed, which was not asked for")
        return b"".join(self._parts)

    def on_header(self, name: bytes, value: bytes) -> None:
        """For httptools."""
        match name.lower():
            case b"location":
                self.location = value.decode("latin-1")
            case b"content-encoding":
                self._encoding = value
            case b"content-length" | b"transfer-encoding":
                self._sized = True

    def on_headers_complete(self) -> None:
        """For httptools."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """For httptools."""
        self._parts.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        """For httptools; a response of the hundreds comes before the one that counts."""
        self.complete = self.status >= 200


async def _read(reader: asyncio.StreamReader, left_bytes: int) -> _Response:
    """The whole response, or as much of one that leads on as says where to."""
    response = _Response(left_bytes)
    size = 0
    while not response.complete:
        data = await reader.read(_PIECE_BYTES)
        size += len(data)
        if not response.status and size > MAX_HEAD_BYTES:
            raise UrlFault(f"could not be fetched: its head has more than {MAX_HEAD_BYTES} bytes")
        if data:
            response.feed(data)
        else:
            response.end()
        if response.status in _REDIRECTS:
            break
    return response


def _checked(url: str) -> SplitResult:
    """The parts of a URL that may be asked for. Raises `UrlFault`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UrlFault(f"is no URL: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise UrlFault(f"must be an http or https URL, is {told(url)}")
    if parts.username is not None or parts.password is not None:
        raise UrlFault("must have no user name and no password")
    target = parts.path + parts.query + parts.hostname
    if (
        len(url) > MAX_URL_CHARS
        or not target.isascii()
        or not target.isprintable()
        or " " in target
    ):
        raise UrlFault(f"must be at most {MAX_URL_CHARS} characters of ASCII, others escaped")
    return parts


def _request(parts: SplitResult) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc
    lines = (
        f"GET {target} HTTP/1.1",
        f"Host: {host}",
        f"User-Agent: antiphon/{VERSION}",
        "Accept: */*",
        "Accept-Encoding: identity",
        "Connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
