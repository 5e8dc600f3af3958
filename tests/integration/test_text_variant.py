"""A Qwen3-Omni checkpoint without a talker, as the Thinking and Captioner models are released."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import CLIENT
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.pipelines.registry import pipeline_for, pipeline_of
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]
NAME = "Qwen3-Omni-Tiny-Thinking"
MESSAGES: list[Any] = [{"role": "user", "content": "day one"}]


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("silent") / NAME
    build_tiny_checkpoint(directory, TinyShape(speaks=False))
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(silent: Path) -> AsyncIterator[Running]:
    deployment = local_deployment(silent, thinker=StageConfig(context_limit=512))
    async with WarmLauncher(deployment) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{running.http_url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


async def test_only_the_thinker_is_started(running: Running) -> None:
    assert set(running.processes) == {"thinker", "gateway"}


async def test_model_card_lists_text_alone(running: Running) -> None:
    async with httpx.AsyncClient() as http:
        card, *_ = (await http.get(f"{running.http_url}/v1/models")).json()["data"]
        health = await http.get(f"{running.http_url}/health")
    assert card["outputs"] == ["text"]
    assert card["voices"] == []
    assert "audio" in card["input_kinds"]
    assert health.status_code == 200


async def test_chat_answers_in_text(client: openai.AsyncOpenAI, tiny: Path) -> None:
    """As the checkpoint that speaks does: their thinkers have the same weights."""
    plain = await client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=12, temperature=0
    )
    told = await client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=12, temperature=0, modalities=["text"]
    )
    assert plain.choices[0].message.content
    assert plain.choices[0].message.content == told.choices[0].message.content
    assert plain.choices[0].message.audio is None
    async with (
        WarmLauncher(local_deployment(tiny, thinker=StageConfig(context_limit=512))) as speaking,
        openai.AsyncOpenAI(base_url=f"{speaking.http_url}/v1", api_key="none") as other,
    ):
        same = await other.chat.completions.create(
            model=tiny.name, messages=MESSAGES, max_tokens=12, temperature=0, modalities=["text"]
        )
    assert same.choices[0].message.content == plain.choices[0].message.content


async def test_audio_is_refused_by_the_models_name(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await client.chat.completions.create(
            model=NAME,
            messages=MESSAGES,
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "wav"},
        )
    assert refused.value.status_code == 400
    assert f"{NAME} can't generate audio; it supports text" in refused.value.message


async def test_realtime_answers_in_text(client: openai.AsyncOpenAI) -> None:
    async with client.realtime.connect(model=NAME) as connection:
        created = await connection.recv()
        assert created.type == "session.created"
        assert created.session.to_dict()["output_modalities"] == ["text"]
        item: Any = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "day one"}],
        }
        await connection.conversation.item.create(item=item)
        await connection.response.create(response={"max_output_tokens": 12})
        text = ""
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.done":
                break
        assert text
        await connection.response.create(response={"output_modalities": ["audio"]})
        async for event in connection:
            if event.type == "error":
                assert f"{NAME} can't generate audio" in event.error.message
                break
            assert event.type != "response.done" or event.response.status == "failed", event
            if event.type == "response.done":
                assert f"{NAME} can't generate audio" in event.response.to_json()
                break


async def test_pipeline_of_the_checkpoint_has_what_leads_to_text(silent: Path) -> None:
    made = pipeline_of(silent)
    assert made.name == PIPELINE.name
    assert made.roles == ("thinker",)
    assert {edge.name for edge in made.edges} == {"input", "text", "tool_calls"}
    assert {each for edge in made.edges for each in (edge.producer, *edge.consumers)} == {
        CLIENT,
        "thinker",
    }
    assert pipeline_for(silent, PIPELINE.name) == made
    with pytest.raises(InvalidArgument, match=rf"no stage talker \({NAME} only generates text"):
        made.check_role("talker", NAME)
