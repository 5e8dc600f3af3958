"""Pages and shells of every kind of origin, and gateways in a private network."""

from __future__ import annotations

import json

import pytest
from websockets.exceptions import InvalidStatus

from antiphon.deployment.schema import deployment_of
from antiphon.errors import InvalidArgument
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import MODEL, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

# By sender: the setting, the origin that it sends, and origins that the setting leaves out.
SENDERS = {
    "a file opened in Chrome": ("null", "null", ("https://null", "file://")),
    "Android's WebView": ("file://", "file://", ("null", "file://host")),
    "Electron": ("app://obsidian.md", "app://obsidian.md", ("app://obsidian.md.evil", "app://")),
    "Electron, any bundle": ("app://*", "app://-", ("apps://-", "https://app")),
    "Capacitor": ("capacitor://localhost", "capacitor://localhost", ("http://localhost",)),
    "Tauri": ("tauri://localhost", "tauri://localhost", ("tauri://localhost:1",)),
    "an extension": (
        "chrome-extension://*",
        "chrome-extension://hnkcfpcejkafcihlgbojoidoihckciin",
        ("moz-extension://hnkcfpcejkafcihlgbojoidoihckciin",),
    ),
    "a development server": (
        "http://localhost:*",
        "http://localhost:5173",
        ("http://localhost.evil:5173", "http://evil:5173", "https://localhost:5173"),
    ),
    "a port left out": ("http://localhost:*", "http://localhost", ("http://localhosts",)),
    "an address of IPv6": ("http://[::1]:3000", "http://[::1]:3000", ("http://[::1]:3001",)),
    "a preview deployment": (
        "https://*.example.com",
        "https://pr-7.example.com",
        ("https://example.com", "https://evilexample.com", "https://a.example.com:8443"),
    ),
    "anything": ("*", "null", ()),
}


def _preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
        "access-control-request-private-network": "true",
    }


@pytest.mark.parametrize("sender", SENDERS)
async def test_an_origin_of_any_form_may_call_when_it_is_configured(sender: str) -> None:
    setting, origin, others = SENDERS[sender]
    async with serve_gateway(cors_origins=("https://first.example", setting)) as served:
        allowed = await served.http.options("/v1/chat/completions", headers=_preflight(origin))
        assert allowed.status_code == 200, allowed.text
        assert allowed.headers["access-control-allow-origin"] in (origin, "*")
        assert allowed.headers["access-control-allow-private-network"] == "true"
        answer = await served.http.get("/v1/models", headers={"origin": origin})
        assert answer.headers["access-control-allow-origin"] in (origin, "*")
        async with realtime(served, Origin=origin) as client:
            await client.say("Hi")
        for other in others:
            refused = await served.http.options("/v1/chat/completions", headers=_preflight(other))
            assert "access-control-allow-origin" not in refused.headers, other
            answer = await served.http.get("/v1/models", headers={"origin": other})
            assert "access-control-allow-origin" not in answer.headers, other
            with pytest.raises(InvalidStatus, match="403"):
                async with realtime(served, Origin=other):
                    raise AssertionError(f"{other} came in")


async def test_no_page_of_another_origin_may_call_by_default(served: ServedGateway) -> None:
    for origin in ("null", "file://", "https://app.example"):
        refused = await served.http.options("/v1/models", headers=_preflight(origin))
        assert "access-control-allow-origin" not in refused.headers
        assert "access-control-allow-private-network" not in refused.headers
        with pytest.raises(InvalidStatus, match="403"):
            async with realtime(served, Origin=origin):
                raise AssertionError(f"{origin} came in")


CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


async def test_request_that_a_form_could_send_is_refused_to_pages_of_other_origins() -> None:
    async with serve_gateway(cors_origins=("https://app.example",)) as served:

        async def status(kind: str, **headers: str) -> int:
            headers |= {"content-type": kind} if kind else {}
            body = json.dumps(CHAT).encode()
            answer = await served.http.post("/v1/chat/completions", content=body, headers=headers)
            return answer.status_code

        for kind in ("text/plain", "text/plain; charset=UTF-8", "Multipart/Form-Data", ""):
            assert await status(kind, origin="https://evil.example") == 403, kind
            assert await status(kind, origin="null") == 403, kind
            assert await status(kind) == 200, kind
            assert await status(kind, origin="https://app.example") == 200, kind
            assert await status(kind, origin=served.url) == 200, kind
            sent_with_a_key = {"origin": "https://evil.example", "authorization": "Bearer none"}
            assert await status(kind, **sent_with_a_key) == 200, kind
            # Which the browser itself sends to a server that has asked for it.
            sent_with_a_password = sent_with_a_key | {"authorization": "Basic bm9uZTpub25l"}
            assert await status(kind, **sent_with_a_password) == 403, kind
        assert await status("application/json", origin="https://evil.example") == 200
        refused = await served.http.post(
            "/v1/audio/transcriptions", headers={"origin": "null"}, files={"file": b""}
        )
        assert refused.status_code == 403
        assert "gateway.cors_origins" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "setting",
    [
        "app.example",
        "https://app.example/",
        "https://app.example/page",
        "https://",
        "https://a, https://b",
        "https://user@app.example",
        "https://app.*",
        "https://app.example:port",
        "https://[::1",
        "",
    ],
)
async def test_what_is_no_origin_is_refused_at_the_start_with_the_remedy(setting: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        deployment_of({"gateway": {"cors_origins": [setting]}})
    assert caught.value.field == "gateway.cors_origins"
    assert repr(setting) in caught.value.message
    assert "https://app.example" in caught.value.message
