"""Functions called through the running services: what is said before a call is spoken, nothing
else, and all ids are Hugging Face's.

The replies of the checkpoint are known beforehand. The reference for the speech is the same
checkpoint with a reply that ends where the call begins.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon.values.conversation import Conversation
from antiphon_testkit.conversations import conversation
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen3_omni.reference import Case, Reference
from antiphon_testkit.qwen3_omni.scripted_checkpoint import (
    BEGINNING,
    END,
    build_scripted_checkpoint,
)
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.asking import AUDIO_TOLERANCE
from tests.equality.shapes import CHECKPOINTS

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPEN, CLOSE = "<tool_call>", "</tool_call>"
WRITTEN = '\n{"name": "look", "arguments": {"at": "the sky"}}\n'
SCRIPT = {
    BEGINNING: "Hello",
    "Hello": " you.",
    " you.": " Wait",
    " Wait": OPEN,
    OPEN: WRITTEN,
    WRITTEN: CLOSE,
    CLOSE: END,
}
SAID = "Hello you. Wait"
LOOK = antiphon.Function("look", "Looks.", {"type": "object"})
TOOL = '{"type": "function", "function": {"name": "look", "description": "Looks.", %s}}'
ASKED = Conversation(
    conversation(("user", "What is there?")).messages,
    tools=(TOOL % '"parameters": {"type": "object"}',),
)
TALKER = antiphon.SamplingRequest(temperature=0.0, max_tokens=60)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory, thinker_engine: str) -> tuple[Path, Path]:
    """The checkpoint, and the one whose reply ends where the call begins."""
    folder = tmp_path_factory.mktemp("scripted")
    shape, _ = CHECKPOINTS[thinker_engine]["small"]
    for name, script in (("calls", SCRIPT), ("ends", {**SCRIPT, " Wait": END})):
        build_scripted_checkpoint(folder / name, script, shape, seed=1)
    return folder / "calls", folder / "ends"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running_calls(
    directories: tuple[Path, Path], thinker: StageConfig
) -> AsyncIterator[Running]:
    """All services on the checkpoint."""
    async with WarmLauncher(local_deployment(directories[0], thinker=thinker)) as running:
        yield running


async def test_what_is_said_before_a_call_is_spoken_as_the_reference_speaks_it(
    running_calls: Running, directories: tuple[Path, Path]
) -> None:
    called = Reference(directories[0]).run(Case(ASKED, audio=False))
    spoken = Reference(directories[1]).run(Case(ASKED))
    assert spoken.min_margin >= MIN_MARGIN
    async with antiphon.AsyncClient(running_calls.grpc_address) as client:
        (model,) = (await client.server_info()).models
        assert "tools" in model.input_kinds
        generation = client.generate(
            "What is there?", functions=[LOOK], temperature=0.0, max_tokens=60,
            sampling={"talker": TALKER}, voice="ethan", include_ids=True,
        )  # fmt: skip
        async with generation:
            events = [event async for event in generation]
    texts = [e for e in events if isinstance(e, antiphon.TextDelta)]
    assert "".join(e.text for e in texts) == SAID
    assert [id_ for e in texts for id_ in e.token_ids] == called.text_ids.tolist()
    (call,) = [c for e in events if isinstance(e, antiphon.FunctionCallDelta) for c in e.calls]
    assert (call.name, call.parsed()) == ("look", {"at": "the sky"})
    audio = [e for e in events if isinstance(e, antiphon.AudioDelta)]
    codes = np.frombuffer(b"".join(e.codes for e in audio), "<u2")
    assert codes.tolist() == spoken.codes.reshape(-1).tolist()
    samples = np.frombuffer(b"".join(e.float32 for e in audio), "<f4")
    np.testing.assert_allclose(samples, spoken.waveform, rtol=0, atol=AUDIO_TOLERANCE)


async def test_chat_has_the_call_whole_and_streamed_and_goes_on(
    running_calls: Running, thinker_engine: str
) -> None:
    look: Any = {"type": "function", "function": {"name": "look"}}
    asked: list[Any] = [{"role": "user", "content": "What is there?"}]
    async with openai.AsyncOpenAI(
        base_url=f"{running_calls.http_url}/v1", api_key="none", max_retries=0
    ) as api:
        model = (await api.models.list()).data[0].id
        whole = await api.chat.completions.create(model=model, messages=asked, tools=[look])
        async with api.chat.completions.stream(model=model, messages=asked, tools=[look]) as stream:
            streamed = await stream.get_final_completion()
        for choice in (whole.choices[0], streamed.choices[0]):
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == SAID
            (call,) = choice.message.tool_calls or ()
            assert isinstance(call.function.arguments, str)
            assert (call.function.name, call.function.arguments) == ("look", '{"at": "the sky"}')
        (call,) = whole.choices[0].message.tool_calls or ()
        told = {"role": "tool", "tool_call_id": call.id, "content": "<tool_call>blue"}
        again: Any = [*asked, whole.choices[0].message.model_dump(exclude_none=True), told]
        after = await api.chat.completions.create(model=model, messages=again, tools=[look])
        # The first turn is reused, its reply with the call included.
        assert whole.usage is not None
        assert after.usage is not None
        assert after.usage.prompt_tokens_details is not None
        reused = after.usage.prompt_tokens_details.cached_tokens
        assert reused is not None
        said = whole.usage.prompt_tokens + whole.usage.completion_tokens
        # vLLM reuses whole blocks.
        assert reused >= said - (128 if thinker_engine == "vllm" else 16)
        other: Any = {"type": "function", "function": {"name": "other"}}
        with pytest.raises(openai.UnprocessableEntityError, match="unknown function 'look'"):
            await api.chat.completions.create(model=model, messages=asked, tools=[other])
        must = await api.chat.completions.create(
            model=model, messages=asked, tools=[look], tool_choice="required"
        )
        assert must.choices[0].message.content is None
        assert len(must.choices[0].message.tool_calls or ()) == 1
