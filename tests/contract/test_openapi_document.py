"""The OpenAPI document, the page of it, and who may ask from a browser."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator
from html import unescape
from html.parser import HTMLParser
from typing import Any, get_args

import pytest
import pytest_asyncio

from antiphon.deployment.schema import deployment_of as read_deployment
from antiphon.errors import InvalidArgument
from antiphon_gateway.endpoints.realtime.client_events import ClientEvent
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import TALKER, FakeStages
from tests.contract.served_gateway import (
    MESSAGES,
    MODEL,
    ServedGateway,
    deployment_of,
    serve_gateway,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = "https://app.example"


async def document(served: ServedGateway) -> dict[str, Any]:
    response = await served.http.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()
    return found


async def test_document_has_every_route_and_no_loose_end(served: ServedGateway) -> None:
    api = await document(served)
    assert api["openapi"].startswith("3.1")
    routes = {f"{m} {p}" for p, methods in api["paths"].items() for m in methods}
    assert routes == {
        "post /v1/chat/completions", "post /v1/audio/speech", "post /v1/audio/transcriptions",
        "post /v1/audio/translations", "post /v1/images/generations",
        "get /v1/models", "get /v1/models/{name}", "get /v1/audio/voices", "get /version",
        "get /health", "get /metrics",
    }  # fmt: skip
    known = {f"#/components/schemas/{name}" for name in api["components"]["schemas"]}
    referred = set(
        re.findall(r'"\$ref": ?"([^"]+)"', (await served.http.get("/openapi.json")).text)
    )
    assert referred <= known
    for path in api["paths"]:
        if "get" in api["paths"][path]:
            assert (await served.http.get(path.format(name=MODEL))).status_code == 200


async def test_document_has_a_field_for_each_stage_that_samples(served: ServedGateway) -> None:
    schemas = (await document(served))["components"]["schemas"]
    for body in ("ChatRequest", "SpeechBody"):
        assert TALKER in schemas[body]["properties"]
        assert "code2wav" not in schemas[body]["properties"]
        assert "additionalProperties" not in schemas[body]
    assert {"model", "messages"} == set(schemas["ChatRequest"]["required"])


async def test_document_says_that_a_form_has_a_file(served: ServedGateway) -> None:
    api = await document(served)
    body = api["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    assert list(body) == ["multipart/form-data"]
    kind = api["components"]["schemas"]["TranscriptionForm"]
    assert kind["properties"]["file"] == {"type": "string", "format": "binary"}
    assert TALKER not in kind["properties"]
    assert {"file", "model"} == set(kind["required"])


async def test_document_is_there_before_any_stage_is() -> None:
    async with FakeStages() as fakes:
        deployment = deployment_of(fakes)
        for stage in fakes.by_role.values():
            await stage.die()
        async with Gateway(deployment) as gateway:
            served = ServedGateway(fakes, gateway)
            try:
                schemas = (await document(served))["components"]["schemas"]
                assert (await served.http.get("/docs")).status_code == 200
            finally:
                await served.close()
    assert TALKER not in schemas["ChatRequest"]["properties"]


class Page(HTMLParser):
    """Ids, links within, and whatever a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)
        self.ids += [given["id"]] if given.get("id") else []
        self.links += [given["href"]] if tag == "a" and given.get("href") else []
        if tag in ("script", "link", "iframe", "img"):
            self.fetched.append(given.get("src") or given.get("href") or f"inline {tag}")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("slashes", ["/", "//"])
async def test_page_with_slashes_behind_it_leads_to_the_page(
    slashes: str, served: ServedGateway
) -> None:
    """Its script is beside it."""
    response = await served.http.get(f"/docs{slashes}", follow_redirects=False)
    assert response.is_redirect
    assert response.url.join(response.headers["location"]).path == "/docs"


async def test_page_shows_the_document_and_needs_nothing_else(served: ServedGateway) -> None:
    response = await served.http.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    page = Page()
    page.feed(response.text)
    assert not page.open
    assert page.fetched == ["page/icon.svg", "page/reference.js"]
    for own in page.fetched:
        assert (await served.http.get(f"/{own}")).status_code == 200
    assert len(page.ids) == len(set(page.ids))
    schemas = (await document(served))["components"]["schemas"]
    assert set(schemas) <= set(page.ids)
    within = {link.removeprefix("#") for link in page.links if link.startswith("#")}
    assert within <= set(page.ids)
    assert {link for link in page.links if not link.startswith("#")} == {"/openapi.json"}
    for text in ("POST /v1/chat/completions", "GET /v1/audio/voices", "instructions", "max_tokens"):
        assert text in response.text


async def test_page_shows_every_realtime_event_with_an_example(served: ServedGateway) -> None:
    page = (await served.http.get("/docs")).text
    shown = re.findall(
        r'<details id="event\.(\S+?)" open>.*?<pre class="event"><code>(.+?)</code></pre>',
        page,
        re.DOTALL,
    )
    examples = {kind: json.loads(unescape(example)) for kind, example in shown}
    assert all(example["type"] == kind for kind, example in examples.items())
    read = {kind.__struct_config__.tag for kind in get_args(ClientEvent)}
    written = {"session.created", "response.output_audio.delta", "response.done", "error"}
    assert read | written <= examples.keys()
    assert len(examples) == len(shown)


async def test_page_has_an_example_of_each_endpoint_that_is_accepted(
    served: ServedGateway,
) -> None:
    page = (await served.http.get("/docs")).text
    examples = [unescape(each) for each in re.findall("<pre><code>(.+?)</code></pre>", page, re.S)]
    paths = []
    for example in examples:
        curl, url, *options = shlex.split(example)
        assert curl == "curl"
        path = url.removeprefix("http://localhost:8000").replace("MODEL", MODEL)
        paths.append(path.replace(MODEL, "{name}"))
        if "-d" in options:
            body = json.loads(options[-1])
            answer = await served.http.post(path, json={**body, "model": MODEL})
            # These need another model.
            refused = path in ("/v1/audio/speech", "/v1/images/generations")
            assert answer.status_code == (400 if refused else 200), answer.text
            if refused:
                assert answer.json()["error"]["param"] == "model"
        elif "-F" not in options:
            assert (await served.http.get(path)).status_code == 200
    operations = (await document(served))["paths"]
    assert paths == list(operations)
    bodies = [each["post"]["requestBody"] for each in operations.values() if "post" in each]
    assert all(content["example"] for body in bodies for content in body["content"].values())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def open_to_page() -> AsyncIterator[ServedGateway]:
    async with serve_gateway(cors_origins=(PAGE,)) as served:
        yield served


async def test_pages_of_a_named_origin_may_ask(open_to_page: ServedGateway) -> None:
    http = open_to_page.http
    asked = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    before = await http.options("/v1/chat/completions", headers=asked)
    assert before.status_code == 200
    assert before.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in before.headers["access-control-allow-headers"]
    body = {"model": MODEL, "messages": MESSAGES}
    for sent, status in ((body, 200), ({**body, "model": ""}, 400)):
        answer = await http.post("/v1/chat/completions", json=sent, headers={"origin": PAGE})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_other_pages_may_not_ask(open_to_page: ServedGateway, served: ServedGateway) -> None:
    for http, origin in ((open_to_page.http, "https://other.example"), (served.http, PAGE)):
        answer = await http.get("/v1/models", headers={"origin": origin})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://a, https://b"])
async def test_origin_that_no_browser_sends_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(InvalidArgument, match="cors_origins"):
        read_deployment({"gateway": {"cors_origins": [origin]}})
