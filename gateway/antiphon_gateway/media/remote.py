"""Fetches files that requests refer to by URL. By default, only public addresses can be reached."""

from __future__ import annotations

import asyncio
import io
import math
import socket
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network
from urllib.parse import SplitResult, urljoin, urlsplit

import httpcore2

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import InvalidArgument, NotImplementedYet, told
from antiphon.version import VERSION
from antiphon_gateway.admission.byte_budget import (
    BudgetExceeded,
    ByteBudget,
    ByteLease,
    Holder,
    eviction,
)
from antiphon_gateway.media.checked_network import (
    Address,
    CheckedNetwork,
    Resolve,
    ResponseMeter,
    UrlFault,
)

MAX_REDIRECTS = 3
MAX_URL_CHARS = 8192
_RESOLVING_THREADS = 4
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
# The public part of IPv6, and the ranges within it that contain IPv4 addresses, tunnel endpoints,
# or examples.
_PUBLIC_V6 = ip_network("2000::/3")
_OTHERS_V6 = tuple(map(ip_network, ("2001::/32", "2002::/16", "3fff::/20")))


@dataclass(frozen=True, slots=True)
class RemoteUrl:
    """A file in a remote location."""

    url: str


class UrlFetcher:
    """Fetches files for requests, if the deployment permits this.

    The data counts towards `memory`. `resolve` returns the addresses of a name and defaults to the
    system's resolver. The resolver runs on its own threads, so that slow lookups delay only other
    lookups. Raises `InvalidArgument` if a configured network is invalid.
    """

    def __init__(
        self,
        config: GatewayConfig,
        memory: ByteBudget,
        resolve: Resolve | None = None,
    ) -> None:
        self.config = config
        self.resolve = resolve or self._resolved_by_system
        self.tls = ssl.create_default_context() if config.fetch.urls else None
        self._memory = memory
        self._pool = ThreadPoolExecutor(_RESOLVING_THREADS, "resolve")
        try:
            self._networks = tuple(map(ip_network, config.fetch.networks))
        except ValueError as error:
            field = "gateway.fetch.networks"
            raise InvalidArgument(f"{field}: {error}", field=field) from error

    @contextmanager
    def download(self) -> Iterator[Download]:
        """Return a context manager for a request's files. Their memory is leased until the context
        ends.
        """
        download = Download(self)
        with self._memory.lease(Holder.UPLOADS, download.give_way, of_client=False) as lease:
            download.lease = lease
            yield download

    def is_allowed(self, address: Address) -> bool:
        """Return whether an address is public or is in one of the networks listed in the
        deployment.
        """
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._networks):
            return True
        if isinstance(address, IPv6Address):
            within = any(address in network for network in _OTHERS_V6)
            return address in _PUBLIC_V6 and address.is_global and not within
        return address.is_global and not address.is_multicast

    async def _resolved_by_system(self, host: str, port: int) -> Sequence[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return [str(address[0]).partition("%")[0] for *_, address in found]

        return await asyncio.get_running_loop().run_in_executor(self._pool, look_up)

    def close(self) -> None:
        """Stop resolving names."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Download:
    """The files of one request. They are fetched one at a time and have a maximum total size of
    `max_fetch_bytes`.
    """

    lease: ByteLease

    def __init__(self, fetcher: UrlFetcher) -> None:
        self._fetcher = fetcher
        self._fetched_bytes = 0
        self._clock: asyncio.Timeout | None = None

    async def fetch(self, remote: RemoteUrl, field: str) -> bytes:
        """Return the file.

        Raises `InvalidArgument` with the field, and `NotImplementedYet` if fetching is disabled.
        Raises `BudgetExceeded` if there isn't enough memory or if the memory was needed for
        something else while the server wasn't sending anything.
        """
        config = self._fetcher.config
        if not config.fetch.urls:
            raise NotImplementedYet(
                f"{field}: this gateway doesn't fetch URLs; send a data URL, or set "
                "gateway.fetch.urls",
                field=field,
            )
        try:
            async with asyncio.timeout(config.fetch.timeout_s) as self._clock:
                return await self._follow(remote.url)
        except TimeoutError:
            if self.lease.evicted:
                raise _refused(eviction(), field) from None
            why = f"was not received within {config.fetch.timeout_s:g} s"
        except BudgetExceeded as full:
            raise _refused(full, field) from None
        except UrlFault as fault:
            why = str(fault)
        except (OSError, httpcore2.ProtocolError) as error:
            why = f"could not be fetched: {type(error).__name__}"
        finally:
            self._clock = None
        raise InvalidArgument(f"{field}: {why}", field=field)

    def give_way(self) -> None:
        """End the current fetch, because its memory is needed for something else."""
        if self._clock is not None and not self._clock.expired():
            self._clock.reschedule(-math.inf)

    async def _follow(self, url: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            found = await self._ask(_checked(url))
            if isinstance(found, bytes):
                return found
            try:
                url = urljoin(url, found.url)
            except ValueError as error:
                raise UrlFault(f"is not a valid URL: {error}") from error
        raise UrlFault(f"has more than {MAX_REDIRECTS} redirects")

    async def _ask(self, parts: SplitResult) -> bytes | RemoteUrl:
        """Return the file. If there is a redirect, return its location instead."""
        fetcher = self._fetcher
        left = fetcher.config.fetch.max_fetch_bytes - self._fetched_bytes
        meter = ResponseMeter(lambda size: self.lease.moved(self._fetched_bytes + size))
        network = CheckedNetwork(fetcher.resolve, fetcher.is_allowed, meter)
        async with httpcore2.AsyncConnectionPool(
            ssl_context=fetcher.tls, network_backend=network, max_connections=1
        ) as pool:
            try:
                async with pool.stream("GET", _url(parts), headers=_headers(parts)) as response:
                    meter.head_is_complete()
                    return await self._read(response, meter, left)
            except httpcore2.RemoteProtocolError as error:
                if meter.ended:
                    raise UrlFault("broke off") from error
                # This limits lines in the head, chunk sizes and trailers that never end.
                meter.check()
                raise

    async def _read(
        self, response: httpcore2.Response, meter: ResponseMeter, left: int
    ) -> bytes | RemoteUrl:
        """Return the content of a successful response. If it is a redirect, return its location
        instead.
        """
        fields = {name.lower(): value for name, value in response.headers}
        if response.status in _REDIRECTS:
            return RemoteUrl(fields.get(b"location", b"").decode("latin-1"))
        if response.status != 200:
            raise UrlFault(f"could not be fetched: the server returned {response.status}")
        if fields.get(b"content-encoding", b"").lower() not in (b"", b"identity"):
            raise UrlFault(
                "could not be fetched: the server sent a compressed response, which was not "
                "requested"
            )
        too_large = UrlFault(
            f"has more than the {left} bytes that remain of gateway.fetch.max_fetch_bytes"
        )
        if int(fields.get(b"content-length", b"0")) > left:
            raise too_large
        # A piece may be a single byte, so pieces are joined as they arrive.
        file = io.BytesIO()
        async for piece in response.aiter_stream():
            meter.content_bytes += len(piece)
            if meter.content_bytes > left:
                raise too_large
            file.write(piece)
        self._fetched_bytes += meter.content_bytes
        self.lease.moved(self._fetched_bytes)
        return file.getvalue()


def _refused(error: BudgetExceeded, field: str) -> BudgetExceeded:
    """Return the error with the field of the file."""
    message = f"{field}: {error.message}"
    return BudgetExceeded(message, field=field, retry_after_s=error.retry_after_s)


def _checked(url: str) -> SplitResult:
    """Return the parts of a URL, if it can be requested. Otherwise, raises `UrlFault`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UrlFault(f"is not a valid URL: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise UrlFault(f"must be an http or https URL, got {told(url)}")
    if parts.username is not None or parts.password is not None:
        raise UrlFault("must not contain a user name or password")
    target = parts.path + parts.query + parts.hostname
    if (
        len(url) > MAX_URL_CHARS
        or not target.isascii()
        or not target.isprintable()
        or " " in target
    ):
        raise UrlFault(
            f"must have at most {MAX_URL_CHARS} ASCII characters; percent-encode other characters"
        )
    return parts


def _url(parts: SplitResult) -> httpcore2.URL:
    """Return the URL for httpcore2. It contains the host that was validated, so httpcore2 doesn't
    have to parse anything again.
    """
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return httpcore2.URL(
        scheme=parts.scheme.encode(),
        host=(parts.hostname or "").encode(),
        port=parts.port or _PORTS[parts.scheme],
        target=target.encode(),
    )


def _headers(parts: SplitResult) -> list[tuple[str, str]]:
    return [
        ("Host", parts.netloc),
        ("User-Agent", f"antiphon/{VERSION}"),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
