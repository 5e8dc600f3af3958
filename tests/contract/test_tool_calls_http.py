"""Functions in chats, as OpenAI's client sends and reads them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from antiphon.values.conversation import TextPart, ToolCall, ToolChoice, from_tensors
from antiphon.values.segment import FinishReason
from antiphon_gateway.server import Gateway
from tests.contract.calling_stages import (
    CALLS,
    TOOLS,
    CallInPieces,
    fail_in_a_call,
    say_and_call,
    with_tools,
)
from tests.contract.fake_stages import THINKER, FakeStages, Session
from tests.contract.served_gateway import MODEL, SPOKEN, ServedGateway, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASKED: list[Any] = [{"role": "user", "content": "Look"}]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def opened() -> AsyncIterator[ServedGateway]:
    async with FakeStages() as fakes:
        with_tools(fakes)
        async with Gateway(deployment_of(fakes)) as gateway:
            await gateway.wait_ready()
            served = ServedGateway(fakes, gateway)
            yield served
            await served.close()


@pytest.fixture
def caller(opened: ServedGateway) -> ServedGateway:
    """A gateway whose thinker says something and calls two functions."""
    opened.fakes.reset()
    with_tools(opened.fakes)
    opened.fakes[THINKER].script = say_and_call
    return opened


def heard(served: ServedGateway, at: int = -1) -> Any:
    """What reached the thinker."""
    chunk = served.fakes[THINKER].sessions[at].input
    assert chunk is not None
    return from_tensors(chunk.tensors)


async def test_whole_answer_has_text_and_calls(caller: ServedGateway) -> None:
    answer = await caller.openai.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, n=2
    )
    ids = set()
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        calls: Any = choice.message.tool_calls
        assert [(c.type, c.function.name, c.function.arguments) for c in calls] == [
            ("function", call.name, call.arguments) for call in CALLS
        ]
        ids |= {call.id for call in calls}
    assert len(ids) == 4
    session = caller.fakes[THINKER].sessions[0]
    assert list(session.segment.outputs) == ["text", "tool_calls"]
    assert {route.edge for route in session.opening.routes} == {"text", "tool_calls"}


async def test_whole_answer_has_no_text_when_calls_are_all(caller: ServedGateway) -> None:
    async def call(session: Session) -> None:
        await say_and_call(session, text="")

    caller.fakes[THINKER].script = call
    for fields in ({}, {**SPOKEN, "audio": {"voice": "ethan", "format": "wav"}}):
        given: dict[str, Any] = fields
        answer = await caller.openai.chat.completions.create(
            model=MODEL, messages=ASKED, tools=TOOLS, **given
        )
        message = answer.choices[0].message
        assert (message.content, message.audio) == (None, None)
        assert len(message.tool_calls or ()) == 2


async def test_spoken_answer_has_audio_and_calls(caller: ServedGateway) -> None:
    answer = await caller.openai.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, **SPOKEN
    )
    message: Any = answer.choices[0].message
    assert message.audio.transcript == "I look."
    assert message.audio.data
    assert [call.function.name for call in message.tool_calls] == ["look", "say"]
    # As it came it may be sent back.
    told = [
        *ASKED,
        message.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": c.id, "content": "blue"} for c in message.tool_calls),
    ]
    await caller.openai.chat.completions.create(model=MODEL, messages=told, tools=TOOLS)
    _, said, first, second = heard(caller).messages
    assert said.parts == (TextPart("I look."),)
    assert [(c.name, c.arguments) for c in said.tool_calls] == [
        (c.name, c.arguments) for c in CALLS
    ]
    assert (first.role, first.tool_call_id) == ("tool", said.tool_calls[0].id)
    assert second.tool_call_id == said.tool_calls[1].id


@pytest.mark.parametrize("spoken", [False, True], ids=["text", "audio"])
async def test_streamed_answer_is_assembled_by_the_client(
    caller: ServedGateway, spoken: bool
) -> None:
    fields = SPOKEN if spoken else {}
    async with caller.openai.chat.completions.stream(
        model=MODEL, messages=ASKED, tools=TOOLS, **fields
    ) as stream:
        seen = [event.type async for event in stream]
        answer: Any = await stream.get_final_completion()
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert seen.count("tool_calls.function.arguments.done") == 2
    assert [(c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [
        (call.name, call.arguments) for call in CALLS
    ]


async def test_streamed_chunks_say_index_id_type_and_name(caller: ServedGateway) -> None:
    stream: Any = await caller.openai.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, stream=True
    )
    deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert [(c.index, c.type, c.function.name) for c in calls] == [
        (0, "function", "look"),
        (1, "function", "say"),
    ]
    assert all(c.id.startswith("call_") for c in calls)
    assert not any("tool_call" in (delta.content or "") for delta in deltas)


async def test_arguments_come_as_they_are_written(caller: ServedGateway) -> None:
    calling = caller.fakes[THINKER].script = CallInPieces()
    stream: Any = await caller.openai.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, stream=True
    )
    pieces: list[Any] = []
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or ():
            pieces.append(call)
            calling.read()
    first, *more = pieces
    assert (first.id[:5], first.type, first.function.name) == ("call_", "function", "look")
    assert [(p.index, p.id, p.type, p.function.name) for p in more] == [(0, None, None, None)] * 2
    assert tuple(p.function.arguments for p in pieces) == CallInPieces.PIECES


async def test_stream_fails_when_a_call_proves_to_be_none(caller: ServedGateway) -> None:
    calling = caller.fakes[THINKER].script = CallInPieces(fails=True)
    stream: Any = await caller.openai.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, stream=True
    )
    reasons = []

    async def read_on() -> None:
        async for chunk in stream:
            reasons.append(chunk.choices[0].finish_reason)
            if chunk.choices[0].delta.tool_calls:
                calling.read()

    with pytest.raises(openai.APIError, match="the call is none"):
        await read_on()
    assert set(reasons) == {None}


async def test_functions_reach_the_thinker_as_they_were_sent(caller: ServedGateway) -> None:
    function = {
        "name": "look",
        "parameters": {"z": 1, "a": [1.5, None], "type": "object"},
        "description": "é <tool_call>",
        "strict": True,
        "more": {},
    }
    tools: Any = [{"function": function, "type": "function"}]
    await caller.openai.chat.completions.create(model=MODEL, messages=ASKED, tools=tools)
    (tool,) = heard(caller).tools
    expected = {"type": "function", "function": function}
    assert json.dumps(json.loads(tool)) == json.dumps(expected)


@pytest.mark.parametrize(
    ("fields", "offered", "choice"),
    [
        ({}, 2, ToolChoice()),
        ({"tool_choice": "auto", "parallel_tool_calls": True}, 2, ToolChoice()),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, 2, ToolChoice(parallel=False)),
        ({"tool_choice": "none"}, 0, ToolChoice()),
        ({"tool_choice": "required"}, 2, ToolChoice("")),
        (
            {"tool_choice": {"type": "function", "function": {"name": "say"}}},
            2,
            ToolChoice("say"),
        ),
    ],
)
async def test_choice_reaches_the_thinker(
    caller: ServedGateway, fields: dict[str, Any], offered: int, choice: ToolChoice
) -> None:
    await caller.openai.chat.completions.create(model=MODEL, messages=ASKED, tools=TOOLS, **fields)
    conversation = heard(caller)
    assert len(conversation.tools) == offered
    assert conversation.tool_choice == choice


async def test_history_of_calls_is_taken_without_functions(caller: ServedGateway) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": ""}}
    messages: list[Any] = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "blue"}]},
        {"role": "tool", "tool_call_id": "c", "content": ""},
    ]
    await caller.openai.chat.completions.create(model=MODEL, messages=messages)
    _, said, first, second = heard(caller).messages
    assert said.tool_calls == (ToolCall("c", "look", "{}"),)
    assert (said.parts, first.parts, second.parts) == ((), (TextPart("blue"),), ())


async def test_answer_fails_when_a_call_is_malformed(caller: ServedGateway) -> None:
    caller.fakes[THINKER].script = fail_in_a_call
    with pytest.raises(openai.UnprocessableEntityError, match="invalid function call"):
        await caller.openai.chat.completions.create(model=MODEL, messages=ASKED, tools=TOOLS)
    stream: Any = await caller.openai.chat.completions.create(
        model=MODEL, messages=ASKED, tools=TOOLS, stream=True
    )
    first = await anext(stream)
    assert not first.choices[0].delta.tool_calls

    async def read_on() -> None:
        async for chunk in stream:
            assert not any(choice.delta.tool_calls for choice in chunk.choices)

    with pytest.raises(openai.APIError, match="invalid function call"):
        await read_on()


async def test_answer_that_a_limit_ended_says_so(caller: ServedGateway) -> None:
    async def cut(session: Session) -> None:
        await say_and_call(session, finish=FinishReason.LENGTH)

    caller.fakes[THINKER].script = cut
    answer = await caller.openai.chat.completions.create(model=MODEL, messages=ASKED, tools=TOOLS)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls
