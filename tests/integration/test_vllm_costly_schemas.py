"""Over HTTP: schemas that are costly to compile are rejected, and other chats are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from antiphon.deployment.schema import StageConfig
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher

pytest.importorskip("vllm")
# vLLM's imports alone take long on a busy machine.
pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]

NAME = "tiny-text"
THINKER = StageConfig(engine="vllm", engine_args={"kv_cache_memory_bytes": 128 << 20})
# Each takes more CPU time than the last lane has, also with the few tokens of this model: one to
# compile, one to parse.
SLOW_TO_COMPILE = {"type": "string", "pattern": ".?" * 2_000}
SLOW_TO_PARSE = {
    "type": "object",
    "properties": {f"p{i}": {"type": "string", "pattern": "(a?){1,5000}"} for i in range(40)},
}
COLOR = {"enum": ["red", "green"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    directory = tmp_path_factory.mktemp("text") / NAME
    build_tiny_checkpoint(directory, TinyShape(head_dim=32, speaks=False))
    async with WarmLauncher(local_deployment(directory, thinker=THINKER)) as running:
        yield running


async def chat(http: httpx.AsyncClient, schema: dict[str, Any] | None) -> httpx.Response:
    body: dict[str, Any] = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Which color?"}],
        "max_tokens": 12,
    }
    if schema is not None:
        named = {"name": "answer", "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    return await http.post("/v1/chat/completions", json=body)


async def test_costly_schemas_get_400_while_others_are_answered(running: Running) -> None:
    async with httpx.AsyncClient(base_url=running.http_url, timeout=600) as http:
        answers = await asyncio.gather(
            *(chat(http, schema) for schema in (SLOW_TO_COMPILE, SLOW_TO_PARSE, SLOW_TO_COMPILE)),
            chat(http, None),
            chat(http, COLOR),
        )
        *hostile, free, held = answers
        again = await chat(http, SLOW_TO_COMPILE)
        health = await http.get("/health")
    for answer in (*hostile, again):
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == "response_format"
        assert "CPU time to compile" in error["message"]
        assert "use fewer or smaller repetitions" in error["message"]
    assert free.status_code == 200, free.text
    assert free.json()["choices"][0]["message"]["content"]
    assert held.status_code == 200, held.text
    assert json.loads(held.json()["choices"][0]["message"]["content"]) in COLOR["enum"]
    assert health.status_code == 200


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "any"}},
        {"type": "json_schema", "json_schema": {"name": "color", "schema": COLOR}},
    ],
    ids=["object", "no schema", "schema"],
)
async def test_every_form_of_answer_is_held_to(running: Running, form: dict[str, Any]) -> None:
    """Of the forms that vLLM can hold text to, JSON schemas alone can be reached."""
    body = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}
    async with httpx.AsyncClient(base_url=running.http_url, timeout=600) as http:
        answer = await http.post("/v1/chat/completions", json={**body, "response_format": form})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"].lstrip()[:1] in ("{", '"')


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "regex", "pattern": "x"}},
        {"response_format": {"type": "grammar", "grammar": "root ::= x"}},
        {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
        {"guided_json": COLOR},
        {"guided_regex": "x"},
        {"guided_choice": ["x"]},
        {"guided_grammar": "root ::= x"},
        {"structured_outputs": {"regex": "x"}},
    ],
    ids=str,
)
async def test_other_forms_are_rejected_by_name(running: Running, fields: dict[str, Any]) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    async with httpx.AsyncClient(base_url=running.http_url, timeout=600) as http:
        answer = await http.post("/v1/chat/completions", json=body | fields)
    assert answer.status_code == 400, answer.text
    assert next(iter(fields)) in answer.json()["error"]["message"]
