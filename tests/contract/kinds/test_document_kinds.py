"""The OpenAPI document says what happens to fields that nobody defines.

Generated clients and gateways that validate requests by the document refuse what it forbids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio

from tests.contract.served_gateway import MESSAGES, MODEL, ServedGateway, serve_gateway
from tests.contract.test_transcriptions import file

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "at the top": {"color": "red"},
    "of a message": {"messages": [{**MESSAGES[0], "color": "red"}]},
    "of a part": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "color": "red"}]}]
    },
    "of a stage's sampling": {"talker": {"color": "red"}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["ignore", "reject"])
async def site(request: pytest.FixtureRequest) -> AsyncIterator[tuple[ServedGateway, str]]:
    async with serve_gateway(unknown_fields=request.param) as served:
        yield served, request.param


def allows(document: dict[str, Any], kind: str, body: dict[str, Any]) -> bool:
    """Whether a body is one by the document."""
    schema = {"$ref": f"#/components/schemas/{kind}", "components": document["components"]}
    return jsonschema_rs.Draft202012Validator(schema).is_valid(body)


@pytest.mark.parametrize("sent", CHAT)
async def test_a_chat_is_taken_where_the_document_allows_it(
    site: tuple[ServedGateway, str], sent: str
) -> None:
    served, unknown_fields = site
    document = (await served.http.get("/openapi.json")).json()
    body = {"model": MODEL, "messages": MESSAGES, **CHAT[sent]}
    taken = (await served.http.post("/v1/chat/completions", json=body)).status_code == 200
    assert taken == (unknown_fields == "ignore" or sent == "nothing else")
    assert allows(document, "ChatRequest", body) == taken


async def test_a_form_is_taken_where_the_document_allows_it(
    site: tuple[ServedGateway, str],
) -> None:
    served, unknown_fields = site
    document = (await served.http.get("/openapi.json")).json()
    form = {"model": MODEL, "color": "red"}
    answer = await served.http.post("/v1/audio/transcriptions", data=form, files={"file": file()})
    assert (answer.status_code == 200) == (unknown_fields == "ignore")
    allowed = allows(document, "TranscriptionForm", {**form, "file": "x"})
    assert allowed == (unknown_fields == "ignore")


async def test_the_document_says_what_happens_in_words(site: tuple[ServedGateway, str]) -> None:
    served, unknown_fields = site
    said = (await served.http.get("/openapi.json")).json()["info"]["description"]
    assert ("x-antiphon-ignored" in said) == (unknown_fields == "ignore")
