"""Functions in a conversation over gRPC, through the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import antiphon
from antiphon.errors import InvalidArgument
from antiphon.values.conversation import from_tensors
from antiphon_gateway.server import Gateway
from tests.contract.calling_stages import CALLS, TOOLS, CallInPieces, say_and_call, with_tools
from tests.contract.converse_client import said, until, until_failed
from tests.contract.fake_stages import ROLES, THINKER, USUAL, FakeStages, twice
from tests.contract.served_gateway import ServedGateway, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

OFFERED = [
    antiphon.Function(
        tool["function"]["name"],
        tool["function"].get("description", ""),
        tool["function"].get("parameters"),
    )
    for tool in TOOLS
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def caller() -> AsyncIterator[ServedGateway]:
    """A gateway whose thinker says something and calls two functions, in each turn."""
    async with FakeStages() as fakes:
        with_tools(fakes)
        for role in ROLES:
            fakes[role].script = twice(say_and_call if role == THINKER else USUAL[role])
        async with Gateway(deployment_of(fakes)) as gateway:
            await gateway.wait_ready()
            served = ServedGateway(fakes, gateway)
            yield served
            await served.close()


async def test_conversation_calls_functions_and_is_told_what_came_of_them(
    caller: ServedGateway,
) -> None:
    async with (
        antiphon.AsyncClient(caller.gateway.grpc_address) as client,
        client.converse(functions=OFFERED, function_choice="required", spoken=False) as call,
    ):
        await said(call, "Look")
        await call.respond()
        made = [await until(call, antiphon.ResponseFunctionCall) for _ in CALLS]
        assert [(each.call.name, each.call.arguments) for each in made] == [
            (each.name, each.arguments) for each in CALLS
        ]
        done = (await until(call, antiphon.ResponseDone)).response
        assert done.status == "completed"
        assert [item.parts for item in done.items[1:]] == [(each.call,) for each in made]
        for each in made:
            await call.answer_call(each.call, "blue")
            created = (await until(call, antiphon.ItemCreated)).item
            assert (created.role, created.parts) == (
                "tool",
                (antiphon.CallResultPart(each.call.id, "blue"),),
            )
        await call.update(functions=())
        await until(call, antiphon.SettingsUpdated)
        await call.respond()
        await until(call, antiphon.ResponseDone)
        chunk = caller.fakes[THINKER].sessions[-1].input
        assert chunk is not None
        heard = from_tensors(chunk.tensors)
        assert [message.role for message in heard.messages] == [
            *("user", "assistant"),
            *["tool"] * len(CALLS),
        ]
        assert len(heard.messages[1].tool_calls) == len(CALLS)
        bad = antiphon.Item("user", (made[0].call,))
        await call.add(bad, reference="bad")
        failed = await until_failed(call)
        assert isinstance(failed.error, InvalidArgument)
        assert (failed.reference, failed.error.field) == ("bad", "create_item.item.contents[0]")
        await call.update(functions=OFFERED, function_choice=antiphon.Function("other"))
        assert (await until_failed(call)).error.field == "settings.functions.choice"


async def test_arguments_come_as_they_are_written(caller: ServedGateway) -> None:
    calling = CallInPieces()
    caller.fakes[THINKER].script = calling
    async with (
        antiphon.AsyncClient(caller.gateway.grpc_address) as client,
        client.converse(functions=OFFERED, spoken=False) as call,
    ):
        await said(call, "Look")
        await call.respond()
        deltas = []
        for _ in CallInPieces.PIECES:
            deltas.append(await until(call, antiphon.ResponseFunctionCallDelta))
            calling.read()
        made = await until(call, antiphon.ResponseFunctionCall)
    assert tuple(each.arguments for each in deltas) == CallInPieces.PIECES
    assert {(each.item_id, each.call_id, each.name, each.index) for each in deltas} == {
        (made.item_id, made.call.id, "look", made.index)
    }
