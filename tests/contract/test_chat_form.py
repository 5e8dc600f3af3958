"""`response_format` and `chat_template_kwargs`: what reaches the stage, and what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from pydantic import BaseModel

import antiphon
from antiphon.errors import InvalidArgument
from antiphon.values.conversation import from_tensors
from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import THINKER, Session
from tests.contract.served_gateway import MESSAGES, MODEL, ServedGateway, serve_gateway, tell_anew

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Bell(BaseModel):
    name: str
    tons: float


SCHEMA: dict[str, Any] = Bell.model_json_schema()
NAMED = {"type": "json_schema", "json_schema": {"name": "bell", "schema": SCHEMA}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def constraining() -> AsyncIterator[ServedGateway]:
    async with serve_gateway() as served:
        served.gateway.fleet[THINKER].require().constrains_text = True
        tell_anew(served.gateway)
        yield served


def asked(served: ServedGateway) -> Any:
    sampling = served.fakes[THINKER].sessions[-1].segment.sampling[THINKER]
    return json.loads(sampling.json_schema) if sampling.HasField("json_schema") else None


async def test_response_format_reaches_the_stage_as_a_schema(constraining: ServedGateway) -> None:
    async def write(session: Session) -> None:
        await session.opened()
        await session.text('{"name": "Tom", "tons": 7.5}', FinishReason.STOP)
        await session.report()

    constraining.fakes.reset()
    constraining.fakes[THINKER].script = write
    parsed = await constraining.openai.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Bell
    )
    assert parsed.choices[0].message.parsed == Bell(name="Tom", tons=7.5)
    sent = asked(constraining)
    assert sent["required"] == ["name", "tons"]
    assert sent["properties"]["tons"] == {"title": "Tons", "type": "number"}


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "any"}}, {"type": "object"}),
        (NAMED, SCHEMA),
    ],
)
async def test_response_format_is_what_openai_calls_it(
    constraining: ServedGateway, given: dict[str, Any], schema: Any
) -> None:
    constraining.fakes.reset()
    response = await constraining.chat(response_format=given)
    assert response.status_code == 200, response.text
    assert asked(constraining) == schema


@pytest.mark.parametrize(
    "given",
    [
        {"type": "grammar"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"x": "y" * (64 << 10)}}},
        "json_object",
    ],
)
async def test_response_format_that_is_none_is_refused_by_its_name(
    constraining: ServedGateway, given: Any
) -> None:
    constraining.fakes.reset()
    response = await constraining.chat(response_format=given)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("response_format")
    assert not constraining.fakes[THINKER].sessions


async def test_response_format_that_the_engine_cannot_keep_to_names_it(
    constraining: ServedGateway,
) -> None:
    async def refuse(session: Session) -> None:
        await session.opened()
        await session.error(InvalidArgument("json_schema: no such type", field="json_schema"))

    constraining.fakes.reset()
    constraining.fakes[THINKER].script = refuse
    response = await constraining.chat(response_format=NAMED)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["message"]) == (
        "response_format",
        "response_format: no such type",
    )


@pytest.mark.parametrize("given", [NAMED, {"type": "json_object"}])
async def test_response_format_is_refused_where_no_engine_keeps_to_it(
    served: ServedGateway, given: Any
) -> None:
    response = await served.chat(response_format=given)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("response_format", "not_implemented")
    assert "engine: vllm" in error["message"]
    assert not served.fakes[THINKER].sessions
    assert (await served.chat(response_format={"type": "text"})).status_code == 200


async def test_template_variables_reach_the_stage_that_has_the_template(
    served: ServedGateway,
) -> None:
    given = {"enable_thinking": False, "tone": "low", "depth": 2, "share": 0.5, "end": None}
    answer = await served.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_body={"chat_template_kwargs": given}
    )
    assert answer.choices[0].message.content
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    assert from_tensors(chunk.tensors).template == given
    assert (await served.chat(chat_template_kwargs={})).status_code == 200


async def test_template_variables_over_grpc_reach_the_stage_that_has_the_template(
    served: ServedGateway,
) -> None:
    given = {"enable_thinking": False, "tone": "löw", "depth": 2, "share": 0.5, "end": None}
    async with antiphon.AsyncClient(served.gateway.grpc_address) as client:
        await client.generate("Hi", chat_template_kwargs=given).collect()
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    assert from_tensors(chunk.tensors).template == given


async def test_template_variables_are_refused_where_text_is_read_aloud(
    served: ServedGateway,
) -> None:
    told = served.gateway.fleet[THINKER].require()
    told.reads_aloud = True
    tell_anew(served.gateway)
    try:
        response = await served.chat(chat_template_kwargs={"tone": "low"})
    finally:
        told.reads_aloud = False
        tell_anew(served.gateway)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "chat_template_kwargs"
