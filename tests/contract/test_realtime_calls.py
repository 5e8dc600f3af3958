"""Functions at `/v1/realtime`, as OpenAI's client sends and reads them.

The order of events is in `realtime_events/`; see `test_realtime_order.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

import antiphon
from antiphon.errors import NotImplementedYet
from antiphon.values.conversation import TextPart, ToolChoice, from_tensors
from antiphon.values.segment import FinishReason
from antiphon.wire.tool_calls import CallPiece, call_pieces_to_tensors
from antiphon_gateway.server import Gateway
from tests.contract.calling_stages import (
    CALLS,
    TOOLS,
    CallInPieces,
    fail_in_a_call,
    say_and_call,
    with_tools,
)
from tests.contract.fake_stages import ROLES, THINKER, USUAL, FakeStages, Session, twice
from tests.contract.realtime_client import Realtime, Told, realtime
from tests.contract.served_gateway import ServedGateway, deployment_of, serve_gateway
from tests.contract.test_realtime_order import FOLDER, Transcript

pytestmark = pytest.mark.asyncio(loop_scope="session")

OFFERED = [{"type": "function", **tool["function"]} for tool in TOOLS]
NAMED = {"type": "function", "name": "say"}
NO_CALL = CallInPieces(fails=True)


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
    """A gateway whose thinker says something and calls two functions, in each turn."""
    opened.fakes.reset()
    with_tools(opened.fakes)
    for role in ROLES:
        opened.fakes[role].script = twice(say_and_call if role == THINKER else USUAL[role])
    return opened


def heard(served: ServedGateway) -> Any:
    """What reached the thinker last."""
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    return from_tensors(chunk.tensors)


async def offer(client: Realtime, **session: Any) -> Told:
    given = {"type": "realtime", "tools": OFFERED, **session}
    await client.send("session.update", session=given)
    updated: Told = (await client.until("session.updated"))["session"]
    return updated


async def call_alone(session: Session) -> None:
    await say_and_call(session, text="")


async def call_until_cancelled(session: Session) -> None:
    await session.opened()
    await session.text("I look.")
    await session.chunk("tool_calls", call_pieces_to_tensors([CallPiece("look", "{")]))
    await session.cancelled_segment()
    await session.report(FinishReason.CANCELLED)


async def function_call(told: Transcript) -> None:
    given = {"type": "realtime", "tools": OFFERED, "output_modalities": ["text"]}
    await told.send("session.update", session=given)
    await told.until("session.updated")
    await told.write("Look")
    await told.send("response.create")
    call = await told.until("response.function_call_arguments.done")
    await told.until("response.done")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "blue"}
    await told.send("conversation.item.create", item=output)
    await told.until("conversation.item.done")


async def function_call_behind_text(told: Transcript) -> None:
    given = {"type": "realtime", "tools": OFFERED, "output_modalities": ["text"]}
    await told.send("session.update", session=given)
    await told.until("session.updated")
    await told.write("Look")
    await told.send("response.create")
    await told.until("response.done")


async def failed_function_call(told: Transcript) -> None:
    await function_call_behind_text(told)


async def function_call_that_proves_to_be_none(told: Transcript) -> None:
    given = {"type": "realtime", "tools": OFFERED, "output_modalities": ["text"]}
    await told.send("session.update", session=given)
    await told.until("session.updated")
    await told.write("Look")
    await told.send("response.create")
    for _ in NO_CALL.PIECES:
        await told.until("response.function_call_arguments.delta")
        NO_CALL.read()
    await told.until("response.done")


@pytest.mark.parametrize(
    ("case", "script"),
    [
        (function_call, call_alone),
        (function_call_behind_text, say_and_call),
        (failed_function_call, fail_in_a_call),
        (function_call_that_proves_to_be_none, NO_CALL),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_events_of_calls_come_in_the_order_of_the_file(
    caller: ServedGateway,
    case: Callable[[Transcript], Awaitable[None]],
    script: Callable[[Session], Awaitable[None]],
    request: pytest.FixtureRequest,
) -> None:
    caller.fakes[THINKER].script = script
    async with realtime(caller) as client:
        told = Transcript(client)
        await case(told)
    path = FOLDER / f"{case.__name__}.txt"
    if request.config.getoption("--write-orders"):
        path.write_text(told.text())
    assert told.text() == path.read_text()


async def test_turn_after_a_call_has_the_call_and_what_came_of_it(caller: ServedGateway) -> None:
    async with realtime(caller) as client:
        await offer(client)
        await client.say("Look")
        await client.send("response.create")
        done = (await client.until("response.done"))["response"]
        assert done["status"] == "completed"
        message, *calls = done["output"]
        assert message["content"] == [{"type": "output_audio", "transcript": "I look."}]
        assert [(c["type"], c["name"], c["arguments"]) for c in calls] == [
            ("function_call", call.name, call.arguments) for call in CALLS
        ]
        deltas = [e for e in client.events if e["type"].endswith("call_arguments.delta")]
        assert [e["delta"] for e in deltas] == [call.arguments for call in CALLS]
        assert [e["output_index"] for e in deltas] == [1, 2]
        for call in calls:
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "so"}
            await client.send("conversation.item.create", item=output)
            item = (await client.until("conversation.item.done"))["item"]
            assert (item["call_id"], item["output"]) == (call["call_id"], "so")
        await client.send("response.create")
        await client.until("response.done")
    (session,) = caller.fakes[THINKER].sessions
    assert list(session.segment.outputs) == ["audio", "text", "tool_calls"]
    user, said, first, second = heard(caller).messages
    assert (user.role, said.role, said.parts) == ("user", "assistant", (TextPart("I look."),))
    assert [(c.id, c.name) for c in said.tool_calls] == [(c["call_id"], c["name"]) for c in calls]
    assert (first.role, first.parts, first.tool_call_id) == (
        "tool", (TextPart("so"),), calls[0]["call_id"],
    )  # fmt: skip
    assert second.tool_call_id == calls[1]["call_id"]


async def test_arguments_come_as_they_are_written_and_a_cancelled_call_is_deleted(
    caller: ServedGateway,
) -> None:
    calling = CallInPieces()

    async def turns(session: Session) -> None:
        for script in (calling, call_until_cancelled):
            await script(session)
            await session.next_segment()
        await say_and_call(session)

    caller.fakes[THINKER].script = turns
    async with realtime(caller) as client:
        await offer(client, output_modalities=["text"])
        await client.say("Look")
        await client.send("response.create")
        deltas = []
        for _ in CallInPieces.PIECES:
            deltas.append(await client.until("response.function_call_arguments.delta"))
            calling.read()
        done = await client.until("response.function_call_arguments.done")
        assert tuple(each["delta"] for each in deltas) == CallInPieces.PIECES
        assert {each["call_id"] for each in deltas} == {done["call_id"]}
        assert done["arguments"] == "".join(CallInPieces.PIECES)
        await client.until("response.done")

        # The text before it is kept, and the call is none: nobody may carry it out.
        await client.send("response.create")
        begun = await client.until("response.function_call_arguments.delta")
        await client.send("response.cancel")
        seen = len(client.events)
        ended = (await client.until("response.done"))["response"]
        assert ended["status"] == "cancelled"
        assert [item["type"] for item in ended["output"]] == ["message"]
        told = [e["type"] for e in client.events[seen:] if e.get("item_id") == begun["item_id"]]
        assert told == ["conversation.item.deleted"]
        await client.send("response.create")
        await client.until("response.done")
    assert [len(m.tool_calls) for m in heard(caller).messages if m.role == "assistant"] == [1, 0]


async def test_session_tells_the_functions_that_it_has(caller: ServedGateway) -> None:
    async with realtime(caller) as client:
        updated = await offer(client, tool_choice=NAMED)
        assert updated["tools"] == OFFERED
        assert updated["tool_choice"] == NAMED
        again = await offer(client, tools=[], tool_choice="auto")
        assert (again["tools"], again["tool_choice"]) == ([], "auto")


@pytest.mark.parametrize(
    ("asked", "offered", "choice"),
    [
        ({}, ["look", "say"], ToolChoice()),
        ({"tool_choice": "none"}, [], ToolChoice()),
        ({"tool_choice": "required"}, ["look", "say"], ToolChoice("")),
        ({"tool_choice": NAMED}, ["look", "say"], ToolChoice("say")),
        ({"tools": OFFERED[1:]}, ["say"], ToolChoice()),
        ({"tools": []}, [], ToolChoice()),
        ({"parallel_tool_calls": False}, ["look", "say"], ToolChoice(parallel=False)),
    ],
)
async def test_response_may_have_functions_of_its_own(
    caller: ServedGateway, asked: dict[str, Any], offered: list[str], choice: ToolChoice
) -> None:
    async with realtime(caller) as client:
        await offer(client)
        await client.say("Look")
        await client.send("response.create", response=asked)
        await client.until("response.done")
    conversation = heard(caller)
    assert [json.loads(t)["function"]["name"] for t in conversation.tools] == offered
    assert conversation.tool_choice == choice


async def test_call_that_the_client_writes_is_an_item(caller: ServedGateway) -> None:
    call = {"type": "function_call", "call_id": "mine", "name": "look", "arguments": '{"at": 1}'}
    async with realtime(caller) as client:
        await client.say("Look")
        await client.send("conversation.item.create", item=call)
        item = (await client.until("conversation.item.done"))["item"]
        assert {name: item[name] for name in call} == call
        await client.send("conversation.item.retrieve", item_id=item["id"])
        assert (await client.until("conversation.item.retrieved"))["item"] == item
        await client.send("response.create")
        await client.until("response.done")
    _, said = heard(caller).messages
    assert [(c.id, c.arguments) for c in said.tool_calls] == [("mine", '{"at": 1}')]


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a tool of another kind": (
        "session.update", {"session": {"type": "realtime", "tools": [{"type": "mcp"}]}},
        "session.tools[0].type",
    ),
    "a function without a name": (
        "session.update", {"session": {"type": "realtime", "tools": [{"type": "function"}]}},
        "session.tools[0]",
    ),
    "a choice that is none": (
        "session.update", {"session": {"type": "realtime", "tool_choice": "always"}},
        "session.tool_choice",
    ),
    "a call without an id": (
        "conversation.item.create", {"item": {"type": "function_call", "name": "look"}},
        "item.call_id",
    ),
    "a call without a name": (
        "conversation.item.create", {"item": {"type": "function_call", "call_id": "c"}},
        "item.name",
    ),
    "arguments that are no object": (
        "conversation.item.create",
        {"item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "5"}},
        "item.arguments",
    ),
    "a choice without functions": (
        "response.create", {"response": {"tool_choice": "required"}}, "tool_choice",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "param"), WRONG.values(), ids=WRONG)
async def test_what_is_wrong_is_told_and_the_conversation_goes_on(
    caller: ServedGateway, kind: str, fields: dict[str, Any], param: str
) -> None:
    async with realtime(caller) as client:
        await client.say("Look")
        await client.send(kind, **fields)
        assert (await client.until("error"))["error"]["param"] == param
        await client.send("response.create")
        assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_functions_that_cannot_be_called_are_refused_when_they_are_offered() -> None:
    def refusal(event: Told) -> str:
        return str(event["error"]["message"])

    async with serve_gateway(max_tools=1) as served, realtime(served) as client:
        await client.send("session.update", session={"type": "realtime", "tools": OFFERED})
        assert "gateway.limits.max_tools" in refusal(await client.until("error"))
        await client.send("session.update", session={"type": "realtime", "tools": OFFERED[:1]})
        assert "doesn't support tools" in refusal(await client.until("error"))
        # Nothing of it holds.
        await client.say("Hi")
        await client.send("response.create")
        assert (await client.until("response.done"))["response"]["status"] == "completed"
        async with antiphon.AsyncClient(served.gateway.grpc_address) as other:
            with pytest.raises(NotImplementedYet, match="doesn't support tools"):
                async with other.converse(functions=[antiphon.Function("look")]):
                    raise AssertionError("came in")


async def test_malformed_call_fails_the_response_and_not_the_conversation(
    caller: ServedGateway,
) -> None:
    caller.fakes[THINKER].script = fail_in_a_call
    async with realtime(caller) as client:
        await offer(client, output_modalities=["text"])
        await client.say("Look")
        await client.send("response.create")
        done = (await client.until("response.done"))["response"]
        assert done["status"] == "failed"
        assert "invalid function call" in done["status_details"]["error"]["message"]
        assert [item["type"] for item in done["output"]] == ["message"]
        caller.fakes[THINKER].script = say_and_call
        await client.send("response.create")
        assert (await client.until("response.done"))["response"]["status"] == "completed"


async def test_cut_answer_keeps_the_calls_that_it_made(caller: ServedGateway) -> None:
    async def cut(session: Session) -> None:
        await say_and_call(session, finish=FinishReason.LENGTH)

    caller.fakes[THINKER].script = cut
    async with realtime(caller) as client:
        await offer(client, output_modalities=["text"])
        await client.say("Look")
        await client.send("response.create")
        done = (await client.until("response.done"))["response"]
    assert done["status"] == "incomplete"
    assert [(item["type"], item["status"]) for item in done["output"]] == [
        ("message", "incomplete"),
        ("function_call", "completed"),
        ("function_call", "completed"),
    ]
