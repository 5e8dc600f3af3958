"""Requests that offer another protocol than WebSocket: the offer is ignored, the request served."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from antiphon_gateway.endpoints.http.connection import BoundedConnection
from tests.contract.raw_http import PATH, chat_body, raw_client
from tests.contract.served_gateway import ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

JAVA = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
OFFERS = {
    "java.net.http (LangChain4j, Spring AI, DBeaver)": JAVA,
    "curl --http2": JAVA.replace("AAEAAEAAAAIAAAAB", "AAMAAABkAAQAoAAAAAIAAAAA"),
    "Apache HttpClient 5": "Upgrade: TLS/1.2\r\nConnection: Upgrade\r\n",
    "several tokens": "Upgrade: h2c, TLS/1.3\r\nConnection: keep-alive, upgrade\r\n",
    "several lines": "upgrade: h2c\r\nUpgrade: irc\r\nconnection: TE\r\nConnection: Upgrade\r\n",
    "a proxy that upgrades everything": "Upgrade: websocket\r\nConnection: upgrade\r\n",
}
"""By sender, the headers of its request."""


def with_length(offer: str, body: bytes) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{offer}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunked(offer: str, body: bytes) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{offer}Transfer-Encoding: chunked\r\n\r\n"
    half = len(body) // 2
    chunks = [b"%x\r\n%s\r\n" % (len(each), each) for each in (body[:half], body[half:])]
    return head.encode() + b"".join(chunks) + b"0\r\nx-trailer: 1\r\n\r\n"


@pytest.fixture(params=["at once", "byte by byte"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How what a client sends comes out of the gateway's socket."""
    whole = BoundedConnection.data_received

    def in_bytes(connection: BoundedConnection, data: bytes) -> None:
        for at in range(len(data)):
            whole(connection, data[at : at + 1])

    if request.param == "byte by byte":
        monkeypatch.setattr(BoundedConnection, "data_received", in_bytes)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("framed", [with_length, chunked])
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
async def test_a_body_is_read_when_its_head_offers_another_protocol(
    served: ServedGateway,
    offer: str,
    framed: Callable[[str, bytes], bytes],
) -> None:
    async with raw_client(served) as client:
        # The connection serves the next one, too.
        for _ in range(2):
            await client.send(framed(offer, chat_body()))
            status, headers, body = await client.response()
            assert status == 200, body
            assert json.loads(body)["choices"][0]["message"]["content"] == "Hello wörld!"
            assert "upgrade" not in headers


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
async def test_requests_without_a_body_follow_each_other_when_they_offer_a_protocol(
    served: ServedGateway, offer: str
) -> None:
    # A websocket offered by GET is taken.
    if "websocket" in offer:
        offer = JAVA
    async with raw_client(served) as client:
        for _ in range(2):
            await client.send(f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{offer}\r\n".encode())
            status, _, body = await client.response()
            assert status == 200
            assert json.loads(body)["data"]


async def test_a_pipelined_request_is_not_taken_when_both_offer_a_protocol(
    served: ServedGateway,
) -> None:
    """The first is answered; the second closes the connection, as it does without an offer."""
    async with raw_client(served) as client:
        await client.send(with_length(JAVA, chat_body()) + chunked(JAVA, chat_body()))
        status, headers, _ = await client.response()
        assert status == 200
        assert headers["connection"] == "close"
        assert await client.wait_cut() == b""


async def test_the_client_may_wait_for_continue_when_it_offers_a_protocol(
    served: ServedGateway,
) -> None:
    async with raw_client(served) as client:
        offer = JAVA + "Expect: 100-continue\r\n"
        body = chat_body()
        await client.send(with_length(offer, body)[: -len(body)])
        assert (await client.response())[0] == 100
        await client.send(body)
        assert (await client.response())[0] == 200


async def test_the_offer_of_http_1_0_is_ignored(served: ServedGateway) -> None:
    async with raw_client(served) as client:
        request = with_length("Upgrade: websocket\r\nConnection: upgrade\r\n", chat_body())
        await client.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await client.response())[0] == 200


async def test_a_large_head_is_refused_when_it_offers_a_protocol(served: ServedGateway) -> None:
    async with raw_client(served) as client:
        await client.send(with_length(f"{JAVA}x-large: {'a' * 40_000}\r\n", chat_body()))
        assert (await client.response())[0] == 431


async def test_connect_is_refused(served: ServedGateway) -> None:
    async with raw_client(served) as client:
        await client.send(b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n\r\nrest")
        assert (await client.response())[0] in (400, 405)
