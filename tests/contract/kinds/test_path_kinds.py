"""Paths with a slash more than they need: answered where they are, without a redirect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.contract.raw_http import chat_body, raw_client
from tests.contract.reading_model import Reader, post
from tests.contract.served_gateway import MESSAGES, MODEL, ServedGateway, serve_gateway
from tests.contract.test_transcriptions import file

pytestmark = pytest.mark.asyncio(loop_scope="session")

LISTINGS = (
    "/v1/models/",
    f"/v1/models/{MODEL}/",
    "/v1/audio/voices/",
    "/version/",
    "/openapi.json/",
    "/health/",
    "/metrics/",
    "//v1/models",
    "/v1/models//",
)
# As a TLS proxy hands requests on: in plain HTTP, with the client's own host.
PROXIED = {"host": "localhost", "x-forwarded-proto": "https", "x-forwarded-host": "speech.example"}


@pytest.mark.parametrize("path", LISTINGS)
async def test_a_listing_is_shown(served: ServedGateway, path: str) -> None:
    plain = "/" + path.strip("/")
    shown = await served.http.get(f"{served.url}{path}", headers=PROXIED)
    assert shown.status_code == 200, shown.text
    assert "location" not in shown.headers
    if plain != "/metrics":
        assert shown.content == (await served.http.get(plain)).content


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "//v1/chat/completions"])
async def test_a_chat_is_answered(served: ServedGateway, path: str) -> None:
    async with raw_client(served) as client:
        body = chat_body()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Proto: https\r\n"
        await client.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, headers, answer = await client.response()
        assert status == 200, answer
        assert "location" not in headers


async def test_a_recording_is_transcribed(served: ServedGateway) -> None:
    said = await served.http.post(
        "/v1/audio/transcriptions/",
        data={"model": MODEL},
        files={"file": file()},
        headers=PROXIED,
    )
    assert said.status_code == 200, said.text


async def test_a_text_is_read_aloud(reader: Reader) -> None:
    said = await post(reader, "/v1/audio/speech/", input="Read.", response_format="wav")
    assert said.status_code == 200, said.text


async def test_a_conversation_is_opened(served: ServedGateway) -> None:
    for path in ("/v1/realtime/", "//v1/realtime"):
        async with connect(f"ws://{served.gateway.http_address}{path}") as websocket:
            assert json.loads(await websocket.recv())["type"] == "session.created"


async def test_a_path_that_needs_a_key_needs_it_with_more_slashes(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: []\n")
    async with serve_gateway(keys_file=str(keys)) as served:
        for path in ("/v1/models", "/v1/models/", "//v1/models", "///v1//models"):
            shown = await served.http.get(f"{served.url}{path}")
            assert shown.status_code in (401, 404), path
        body = {"model": MODEL, "messages": MESSAGES}
        for path in ("/v1/chat/completions/", "//v1/chat/completions"):
            refused = await served.http.post(f"{served.url}{path}", json=body)
            assert refused.status_code == 401, path


async def test_a_path_that_does_not_exist_is_not_found(served: ServedGateway) -> None:
    for path in ("/v1/chat/", "/v1/nothing/", "/page/", "/v1/chat//completions"):
        missing = await served.http.get(path)
        assert missing.status_code == 404, path
