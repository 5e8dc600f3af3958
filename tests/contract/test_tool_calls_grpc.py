"""Functions at the gRPC endpoint, by the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import antiphon
from antiphon.values.conversation import TextPart, ToolCall, ToolChoice, from_tensors
from antiphon_gateway.server import Gateway
from tests.contract.calling_stages import (
    CALLS,
    CallInPieces,
    fail_in_a_call,
    say_and_call,
    with_tools,
)
from tests.contract.fake_stages import THINKER, FakeStages
from tests.contract.served_gateway import ServedGateway, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOOK = antiphon.Function(
    "look", "Looks at a thing.", {"type": "object", "properties": {"at": {"type": "string"}}}
)
SAY = antiphon.Function("say")
BOTH = (LOOK, SAY)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def opened() -> AsyncIterator[tuple[ServedGateway, antiphon.AsyncClient]]:
    async with FakeStages() as fakes:
        with_tools(fakes)
        async with Gateway(deployment_of(fakes)) as gateway:
            await gateway.wait_ready()
            served = ServedGateway(fakes, gateway)
            async with antiphon.AsyncClient(gateway.grpc_address) as client:
                yield served, client
            await served.close()


@pytest.fixture
def fakes(opened: tuple[ServedGateway, antiphon.AsyncClient]) -> FakeStages:
    """The thinker says something and calls two functions."""
    fakes = opened[0].fakes
    fakes.reset()
    with_tools(fakes)
    fakes[THINKER].script = say_and_call
    return fakes


@pytest.fixture
def client(opened: tuple[ServedGateway, antiphon.AsyncClient]) -> antiphon.AsyncClient:
    return opened[1]


def heard(fakes: FakeStages) -> Any:
    """What reached the thinker."""
    chunk = fakes[THINKER].sessions[-1].input
    assert chunk is not None
    return from_tensors(chunk.tensors)


async def test_server_tells_that_the_model_takes_tools(
    fakes: FakeStages, client: antiphon.AsyncClient
) -> None:
    (model,) = (await client.server_info()).models
    assert "tools" in model.input_kinds
    assert "tool_calls" not in model.output_kinds


async def test_answer_has_text_audio_and_calls(
    fakes: FakeStages, client: antiphon.AsyncClient
) -> None:
    reply = await client.generate("Look", functions=BOTH).collect()
    assert reply.text == "I look."
    assert reply.pcm16
    assert [(c.name, c.arguments) for c in reply.calls] == [(c.name, c.arguments) for c in CALLS]
    assert reply.calls[0].parsed() == {"at": "sky"}
    assert len({call.id for call in reply.calls}) == 2

    # What came of them goes back with the message that made them.
    said = antiphon.Message.assistant(reply.text, calls=reply.calls)
    told = [antiphon.Message.tool(call, "blue") for call in reply.calls]
    await client.generate([antiphon.Message.user("Look"), said, *told], functions=BOTH).collect()
    _, said_then, first, second = heard(fakes).messages
    assert said_then.tool_calls == tuple(
        ToolCall(call.id, call.name, call.arguments) for call in reply.calls
    )
    assert (first.role, first.parts, first.tool_call_id) == (
        "tool", (TextPart("blue"),), reply.calls[0].id,
    )  # fmt: skip
    assert second.tool_call_id == reply.calls[1].id


async def test_calls_come_as_events_each_when_it_has_ended(
    fakes: FakeStages, client: antiphon.AsyncClient
) -> None:
    async with client.generate("Look", functions=BOTH, modalities=["text"]) as generation:
        deltas = [e async for e in generation if isinstance(e, antiphon.FunctionCallDelta)]
    assert [(delta.first, len(delta.calls)) for delta in deltas] == [(0, 1), (1, 1)]


async def test_arguments_come_as_they_are_written(
    fakes: FakeStages, client: antiphon.AsyncClient
) -> None:
    calling = fakes[THINKER].script = CallInPieces()
    deltas = []
    async with client.generate("Look", functions=BOTH, modalities=["text"]) as generation:
        async for event in generation:
            if isinstance(event, antiphon.FunctionCallDelta):
                deltas.append(event)
                calling.read()
    *unfinished, last = deltas
    assert [delta.calls for delta in unfinished] == [()] * len(CallInPieces.PIECES)
    pieces = [piece for delta in unfinished for piece in delta.pieces]
    assert tuple(piece.arguments for piece in pieces) == CallInPieces.PIECES
    (call,) = last.calls
    assert {(p.index, p.id, p.name) for p in pieces} == {(last.first, call.id, "look")}
    assert call.arguments == "".join(CallInPieces.PIECES)


@pytest.mark.parametrize(
    ("fields", "offered", "choice"),
    [
        ({}, 2, ToolChoice()),
        ({"parallel_calls": False}, 2, ToolChoice(parallel=False)),
        ({"function_choice": "none"}, 0, ToolChoice()),
        ({"function_choice": "required"}, 2, ToolChoice("")),
        ({"function_choice": SAY}, 2, ToolChoice("say")),
    ],
    ids=["auto", "one", "none", "required", "named"],
)
async def test_choice_reaches_the_thinker(
    fakes: FakeStages,
    client: antiphon.AsyncClient,
    fields: dict[str, Any],
    offered: int,
    choice: ToolChoice,
) -> None:
    await client.generate("Look", functions=BOTH, **fields).collect()
    conversation = heard(fakes)
    assert len(conversation.tools) == offered
    assert conversation.tool_choice == choice


CALL = antiphon.FunctionCall("c", "look", "{}")
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"functions": [antiphon.Function("")]}, "functions[0].name"),
    "two of a name": ({"functions": [LOOK, LOOK]}, "functions[1].name"),
    "required without any": ({"function_choice": "required"}, "function_choice"),
    "no such function": ({"functions": [LOOK], "function_choice": SAY}, "function_choice"),
    "a user calls": (
        {"messages": [antiphon.Message("user", ("Hi",), (CALL,))]}, "messages[0].calls",
    ),
    "an answer to nothing": (
        {"messages": [antiphon.Message("tool", ("Hi",))]}, "messages[0].call_id",
    ),
    "arguments are no object": (
        {"messages": [antiphon.Message.assistant(calls=[antiphon.FunctionCall("c", "f", "5")])]},
        "messages[0].calls[0].arguments",
    ),
    "parameters that are no JSON": (
        {"functions": [antiphon.Function("f", "", {"x": object()})]}, "functions[0].parameters",
    ),
    "a choice that is none": ({"function_choice": "always"}, "function_choice"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "field"), WRONG.values(), ids=WRONG)
async def test_wrong_functions_are_refused_naming_the_field(
    fakes: FakeStages, client: antiphon.AsyncClient, fields: dict[str, Any], field: str
) -> None:
    given = {"messages": "Look", **fields}
    with pytest.raises(antiphon.InvalidArgument) as raised:
        await client.generate(**given).collect()
    assert raised.value.field == field


async def test_answer_fails_when_a_call_is_malformed(
    fakes: FakeStages, client: antiphon.AsyncClient
) -> None:
    fakes[THINKER].script = fail_in_a_call
    with pytest.raises(antiphon.UnusableOutput) as raised:
        await client.generate("Look", functions=BOTH).collect()
    assert raised.value.edge == "tool_calls"
