"""Files that a chat names by URL: fetched from where the deployment allows it, and from nowhere
else, whatever names and redirects say."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from antiphon.errors import InvalidArgument
from antiphon_gateway.admission.byte_budget import ByteBudget
from antiphon_gateway.media.remote import RemoteUrl, UrlFetcher
from antiphon_testkit.gateway_settings import gateway_config
from benchmarks.hostile.files import png_of
from tests.contract.fake_stages import INPUT_RATE_HZ, THINKER
from tests.contract.served_gateway import ServedGateway, serve_gateway, tell_anew
from tests.contract.test_audio_input import heard, tone, wav

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIELD = "messages[0].content[0].audio_url.url"
FILE = wav(tone(INPUT_RATE_HZ), INPUT_RATE_HZ)
PNG = png_of(9, 7)
HERE, NEXT_ENDPOINT = "127.0.0.1", "127.0.0.2"
MAX_BYTES = 100_000


def found(body: bytes, *fields: str) -> bytes:
    """A response of a stated length."""
    lines = "".join(f"{each}\r\n" for each in fields)
    return f"HTTP/1.1 200 OK\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def leads_to(url: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(body: bytes, size: int = 1000, extension: bytes = b"") -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    sent = (b"%x%b\r\n%b\r\n" % (len(each), extension, each) for each in (*pieces, b""))
    return CHUNKED + b"".join(sent)


class Site:
    """A web server on the loopback interface that answers by path, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0
        self.stalling = False
        self.pages: dict[str, Callable[[], bytes]] = {
            "/file.wav": lambda: found(FILE),
            "/file.png": lambda: found(PNG),
            "/chunked": lambda: chunked(FILE),
            "/until-the-end": lambda: b"HTTP/1.1 200 OK\r\n\r\n" + FILE,
            "/early": lambda: b"HTTP/1.1 103 Early Hints\r\n\r\n" + found(FILE),
            "/on": lambda: leads_to("/file.wav"),
            "/twice": lambda: leads_to(f"http://{HERE}:{self.port}/on", 308),
            "/circle": lambda: leads_to("/circle"),
            "/inside": lambda: leads_to(f"http://{NEXT_ENDPOINT}:{self.port}/file.wav"),
            "/elsewhere": lambda: leads_to("ftp://there.example/file.wav"),
            "/half": lambda: leads_to("http://["),
            "/dots": lambda: leads_to("http://a..b/"),
            "/hints": lambda: b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40_000 + found(FILE),
            "/crumbs": lambda: chunked(FILE.ljust(50_000), 1),
            "/extended": lambda: CHUNKED + b"4;" + b"x" * 400_000 + b"\r\nRIFF\r\n0\r\n\r\n",
            "/extensions": lambda: chunked(FILE, 10, b";" + b"x" * 1000),
            "/trailers": lambda: chunked(FILE)[:-2] + b"T: t\r\n" * 60_000 + b"\r\n",
            "/trailer": lambda: chunked(FILE)[:-2] + b"T: " + b"t" * 400_000 + b"\r\n\r\n",
            "/claims": lambda: b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n",
            "/large": lambda: found(bytes(MAX_BYTES + 1)),
            "/endless": lambda: b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
            "/short": lambda: found(FILE)[:-5],
            "/packed": lambda: found(gzip.compress(FILE), "Content-Encoding: gzip"),
            "/nonsense": lambda: b"SMTP ready\r\n\r\n",
            "/nothing": lambda: b"",
            "/text": lambda: found(b"hello"),
        }

    def url(self, path: str, host: str = HERE) -> str:
        return f"http://{host}:{self.port}{path}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            self.asked.append(head)
            if path == "/silent":
                # Until the client has had enough.
                await reader.read()
                return
            missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            writer.write(self.pages.get(path, lambda: missing)())
            await writer.drain()
            if self.stalling:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def open_site() -> AsyncIterator[Site]:
    site = Site()
    # On all addresses, so that a request that should not come would be seen.
    server = await asyncio.start_server(site.answer, "0.0.0.0", 0)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()


FETCHES: dict[str, Any] = {
    "fetch_urls": True,
    "fetch_networks": (f"{HERE}/32",),
    "max_fetch_bytes": MAX_BYTES,
    "fetch_timeout_s": 60.0,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fetching() -> AsyncIterator[tuple[ServedGateway, Site]]:
    async with open_site() as site, serve_gateway(**FETCHES) as served:
        yield served, site


async def ask(served: ServedGateway, *urls: str, kind: str = "audio_url") -> httpx.Response:
    parts = [{"type": kind, kind: {"url": url}} for url in urls]
    return await served.chat(messages=[{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    "path", ["/file.wav", "/chunked", "/until-the-end", "/early", "/on", "/twice"]
)
async def test_url_is_fetched_when_it_may_be(
    fetching: tuple[ServedGateway, Site], path: str
) -> None:
    served, site = fetching
    response = await ask(served, site.url(path), site.url("/file.wav"))
    assert response.status_code == 200, response.text
    recordings = heard(served).recordings
    assert len(recordings) == 2
    for recording in recordings:
        assert np.abs(recording - tone(INPUT_RATE_HZ)).max() < 1e-3
    assert f"Host: {HERE}:{site.port}\r\n" in site.asked[-1]


async def test_url_of_an_image_is_fetched_too(fetching: tuple[ServedGateway, Site]) -> None:
    served, site = fetching
    told = served.gateway.fleet[THINKER].require()
    told.input_kinds.append("image")
    told.max_input_images = 1
    tell_anew(served.gateway)
    response = await ask(served, site.url("/file.png"), kind="image_url")
    assert response.status_code == 200, response.text
    (image,) = heard(served).images
    assert image.tobytes() == PNG
    wrong = await ask(served, site.url("/text"), kind="image_url")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (
        400, "messages[0].content[0].image_url.url",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/circle", "has more than 3 redirects"),
        ("/inside", "has no public address"),
        ("/elsewhere", "must be an http or https URL"),
        ("/large", f"more than the {MAX_BYTES} bytes"),
        ("/endless", "the response headers have more than"),
        ("/short", "broke off"),
        ("/packed", "the server sent a compressed response"),
        ("/nonsense", "could not be fetched"),
        ("/nothing", "broke off"),
        ("/missing", "the server returned 404"),
        ("/half", "is not a valid URL"),
        ("/dots", "has a host name that can't be resolved"),
        ("/hints", "the response headers have more than"),
        ("/crumbs", "more framing than content"),
        ("/extended", "more framing than content"),
        ("/extensions", "more framing than content"),
        ("/trailers", "more framing than content"),
        ("/trailer", "more framing than content"),
        ("/claims", f"more than the {MAX_BYTES} bytes"),
        ("/text", "is not a WAV, MP3, FLAC"),
    ],
)
async def test_url_that_gives_no_file_is_refused_naming_the_field(
    fetching: tuple[ServedGateway, Site], path: str, why: str
) -> None:
    served, site = fetching
    response = await ask(served, site.url(path))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, FIELD), response.text
    assert error["message"].startswith(f"{FIELD}: ")
    assert why in error["message"]
    assert not any(f"Host: {NEXT_ENDPOINT}" in each for each in site.asked)


async def test_urls_of_a_request_are_bounded_together(fetching: tuple[ServedGateway, Site]) -> None:
    served, site = fetching
    count = MAX_BYTES // len(FILE) + 1
    response = await ask(served, *[site.url("/file.wav")] * count)
    error = response.json()["error"]
    place = FIELD.replace("content[0]", f"content[{count - 1}]")
    assert (response.status_code, error["param"]) == (400, place)
    assert "gateway.fetch.max_fetch_bytes" in error["message"]


async def test_urls_that_the_model_would_not_take_are_not_asked(
    fetching: tuple[ServedGateway, Site],
) -> None:
    served, site = fetching
    asked = len(site.asked)
    many = await ask(served, *[site.url("/file.wav")] * 65)
    assert (many.status_code, many.json()["error"]["param"]) == (
        400, FIELD.replace("content[0]", "content[64]"),
    )  # fmt: skip
    told = served.gateway.fleet[THINKER].require()
    told.input_sample_rate_hz = 0
    tell_anew(served.gateway)
    try:
        deaf = await ask(served, site.url("/file.wav"))
    finally:
        told.input_sample_rate_hz = INPUT_RATE_HZ
        tell_anew(served.gateway)
    assert (deaf.status_code, deaf.json()["error"]["code"]) == (400, "not_implemented")
    assert len(site.asked) == asked


INTERNAL = (
    NEXT_ENDPOINT, "[::1]", "0.0.0.0", "10.0.0.1", "172.16.5.4", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "224.0.0.1", "255.255.255.255", "2130706434", "0x7f.2",
    "[::ffff:127.0.0.2]", "[::ffff:a9fe:a9fe]", "[fe80::1]", "[fd00::1]", "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]", "[2001::1]",
)  # fmt: skip


@pytest.mark.parametrize("host", INTERNAL)
async def test_url_of_an_internal_address_is_not_asked(
    fetching: tuple[ServedGateway, Site], host: str
) -> None:
    served, site = fetching
    asked = len(site.asked)
    response = await ask(served, site.url("/file.wav", host))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, FIELD), response.text
    assert "has no public address" in error["message"] or "could not be fetched" in error["message"]
    assert len(site.asked) == asked


@pytest.mark.parametrize(
    "url",
    ["http://", "http://a b/", "https://me:secret@there.example/", "http://there.example:99999/",
     "http://there.example/\u00e4", "http://[::1/", f"http://there.example/{'a' * 9000}",
     "http://a..b/", "http://.a/", f"http://{'a' * 64}.example/", "http://a\n.example/",
     f"http://{'a.' * 200}example/", "http://%00.example/", "http://-/", "http://[v1.a]/"],
)  # fmt: skip
async def test_url_that_is_none_is_refused(fetching: tuple[ServedGateway, Site], url: str) -> None:
    response = await ask(fetching[0], url)
    assert (response.status_code, response.json()["error"]["param"]) == (400, FIELD)


async def test_url_is_not_fetched_unless_the_deployment_says_so(served: ServedGateway) -> None:
    async with open_site() as site:
        response = await ask(served, site.url("/file.wav"))
        assert not site.asked
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "not_implemented")
    assert "gateway.fetch.urls" in error["message"]


async def test_url_that_takes_too_long_is_given_up() -> None:
    async with open_site() as site, serve_gateway(**{**FETCHES, "fetch_timeout_s": 0.2}) as served:
        response = await ask(served, site.url("/silent"))
        assert (response.status_code, response.json()["error"]["param"]) == (400, FIELD)
        assert "was not received within 0.2 s" in response.json()["error"]["message"]


def resolving(*answers: Sequence[str]) -> tuple[Any, list[str]]:
    """A resolver that gives one answer after the other, and the names that it was asked for."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers[len(asked) - 1]

    return resolve, asked


async def fetch(fetcher: UrlFetcher, url: RemoteUrl) -> bytes:
    with fetcher.download() as download:
        return await download.fetch(url, "file")


@asynccontextmanager
async def open_fetcher(resolve: Any) -> AsyncIterator[UrlFetcher]:
    config = gateway_config(**FETCHES)
    fetcher = UrlFetcher(config, ByteBudget(1 << 30), resolve)
    try:
        yield fetcher
    finally:
        fetcher.close()


async def test_name_is_resolved_once_so_that_it_cannot_change_its_mind() -> None:
    resolve, asked = resolving([HERE], [NEXT_ENDPOINT])
    async with open_site() as site, open_fetcher(resolve) as fetcher:
        url = RemoteUrl(site.url("/file.wav", "rebinding.example"))
        assert await fetch(fetcher, url) == FILE
        assert asked == ["rebinding.example"]
        with pytest.raises(InvalidArgument, match="no public address"):
            await fetch(fetcher, url)
        assert len(site.asked) == 1
        assert f"Host: rebinding.example:{site.port}" in site.asked[0]


@pytest.mark.parametrize("answer", [[HERE, "10.0.0.1"], ["93.184.215.14", "::1"], []])
async def test_name_with_one_internal_address_is_not_asked(answer: list[str]) -> None:
    resolve, _ = resolving(answer)
    async with open_site() as site, open_fetcher(resolve) as fetcher:
        url = RemoteUrl(site.url("/file.wav", "both.example"))
        with pytest.raises(InvalidArgument, match="no public address"):
            await fetch(fetcher, url)
        assert not site.asked


async def test_public_addresses_may_be_asked() -> None:
    resolve, _ = resolving()
    async with open_fetcher(resolve) as fetcher:
        for address in ("93.184.215.14", "8.8.8.8", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", HERE):
            assert fetcher.is_allowed(ip_address(address))


# Of laboratories, documentation, identifiers and segment routing; some lie in 2000::/3.
@pytest.mark.parametrize(
    "address",
    ["2001:2::1", "2001:10::1", "2001:db8::1", "3fff::1", "5f00::1", "64:ff9b::808:808",
     "64:ff9b:1::1", "::808:808", "::ffff:0:808:808", "fec0::1", "4000::1"],
)  # fmt: skip
async def test_addresses_of_ipv6_that_are_not_global_are_not_asked(address: str) -> None:
    resolve, _ = resolving()
    async with open_fetcher(resolve) as fetcher:
        assert not fetcher.is_allowed(ip_address(address))


async def test_networks_that_are_none_are_refused_at_the_start() -> None:
    config = gateway_config(fetch_networks=("10.0.0.0/99",))
    with pytest.raises(InvalidArgument, match=r"gateway\.fetch\.networks"):
        UrlFetcher(config, ByteBudget(1 << 30))
