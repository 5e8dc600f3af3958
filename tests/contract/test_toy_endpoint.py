"""An endpoint of its own, in this file and one row: plain text in, plain text out."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
import pytest_asyncio

from antiphon.errors import AntiphonError, Internal, InvalidArgument
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon_gateway.endpoints.openai.audio import AnswerEvent
from antiphon_gateway.endpoints.openai.endpoint import JsonEndpoint, RequestContext
from antiphon_gateway.orders.order import Order
from antiphon_gateway.outputs import TEXT
from antiphon_gateway.server import HTTP_ENDPOINTS, Gateway
from antiphon_gateway.sessions.events import TextProduced
from tests.contract.fake_stages import TEXTS, THINKER, FakeStages, Session
from tests.contract.served_gateway import deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


class PlainAnswer:
    """The words as they come."""

    streamed = True
    encoding = None
    content_type = "text/plain; charset=utf-8"

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        return event.text.encode() if isinstance(event, TextProduced) else b""

    def fail(self, error: AntiphonError) -> bytes:
        return f"\n[{error.code.value}]\n".encode()


def read_plain(body: bytes, visit: RequestContext) -> tuple[Order, PlainAnswer]:
    if not body:
        raise InvalidArgument("the body is empty; say something")
    message = ConversationMessage("user", (TextPart(body.decode(errors="replace")),))
    return Order(messages=(message,), outputs=frozenset({TEXT})), PlainAnswer()


PLAIN = JsonEndpoint("/plain", read_plain)

Served = tuple[FakeStages, Gateway, httpx.AsyncClient]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served() -> AsyncIterator[Served]:
    async with (
        FakeStages() as fakes,
        Gateway(deployment_of(fakes), endpoints=(*HTTP_ENDPOINTS, PLAIN)) as gateway,
        httpx.AsyncClient(base_url=f"http://{gateway.http_address}", timeout=240) as client,
    ):
        await gateway.wait_ready()
        yield fakes, gateway, client


async def test_toy_endpoint_answers_with_the_text(
    served: Served,
) -> None:
    fakes, _, client = served
    fakes.reset()
    response = await client.post("/plain", content="Hi", headers={"x-request-id": "mine"})
    assert (response.status_code, response.text) == (200, "".join(TEXTS))
    assert response.headers["content-type"] == PlainAnswer.content_type
    assert response.headers["x-request-id"] == "mine"
    asked = fakes[THINKER].sessions[0].input
    assert asked is not None
    assert b"Hi" in asked.tensors["messages"].tobytes()


async def test_toy_endpoint_shares_the_errors_and_the_access_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_off(session: Session) -> None:
        await session.opened()
        await session.text("Well")
        await session.error(Internal("enough"))

    fakes, gateway, client = served
    fakes.reset()
    caplog.set_level("INFO", logger="gateway.requests")
    refused = await client.post("/plain", content="")
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "the body is empty; say something"
    fakes[THINKER].script = break_off
    assert (await client.post("/plain", content="Hi")).text == "Well\n[internal]\n"
    await gateway.calls.wait_idle()
    assert (await client.get("/health")).status_code == 200
    written = [each.getMessage() for each in caplog.records if each.name == "gateway.requests"]
    lines = [msgspec.json.decode(each) for each in written]
    assert [(line["status"], line["error"]) for line in lines if "error" in line] == [
        ("400", "invalid_argument"),
        ("200", "internal"),
    ]
