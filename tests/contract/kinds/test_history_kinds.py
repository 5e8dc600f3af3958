"""Histories with turns in which nothing was said, as agents send them after an interruption."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.values.conversation import ConversationMessage, TextPart, from_tensors
from tests.contract.fake_stages import THINKER
from tests.contract.served_gateway import ServedGateway, tell_anew

pytestmark = pytest.mark.asyncio(loop_scope="session")

HI = {"role": "user", "content": "Hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}

EMPTY: dict[str, dict[str, Any]] = {
    "vercel/ai: an interrupted answer": {"role": "assistant", "content": ""},
    "openai-python: a whole message with null": {"role": "assistant", "content": None},
    "openai-agents: no parts": {"role": "assistant", "content": []},
    "no content at all": {"role": "assistant"},
    "an empty part": {"role": "assistant", "content": [{"type": "text", "text": ""}]},
    "a part with null": {"role": "assistant", "content": [{"type": "text", "text": None}]},
    "no calls": {"role": "assistant", "content": None, "tool_calls": []},
    "null for everything": {
        "role": "assistant", "content": None, "tool_calls": None, "function_call": None,
        "refusal": None, "audio": None, "annotations": None, "name": None,
    },
    "an answer that was spoken and not heard": {
        "role": "assistant", "content": None, "audio": {"id": "audio_gone", "transcript": ""},
    },
    "LobeChat: an empty system prompt": {"role": "system", "content": ""},
    "a system prompt of null": {"role": "system", "content": None},
    "a developer's": {"role": "developer", "content": []},
    "a user who said nothing": {"role": "user", "content": ""},
}  # fmt: skip


def read(served: ServedGateway) -> tuple[ConversationMessage, ...]:
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    return from_tensors(chunk.tensors).messages


@pytest.mark.parametrize("place", ["first", "between", "last"])
@pytest.mark.parametrize("sender", EMPTY)
async def test_an_empty_turn_is_read_as_one(served: ServedGateway, sender: str, place: str) -> None:
    turn = EMPTY[sender]
    said = {"first": [turn, HI], "between": [HI, turn, HI], "last": [HI, turn]}[place]
    answer = await served.chat(messages=said)
    assert answer.status_code == 200, answer.text
    messages = read(served)
    assert len(messages) == len(said)
    empty = messages[said.index(turn)]
    assert empty.role == {"developer": "system"}.get(turn["role"], turn["role"])
    assert empty.parts == (TextPart(""),)


async def test_an_answer_that_only_calls_has_no_parts(served: ServedGateway) -> None:
    description = served.gateway.fleet[THINKER].require()
    description.input_kinds.append("tools")
    tell_anew(served.gateway)
    try:
        for content in ("", None, []):
            said = [
                HI,
                {"role": "assistant", "content": content, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": content},
                HI,
            ]
            answer = await served.chat(messages=said)
            assert answer.status_code == 200, answer.text
            _, called, result, _ = read(served)
            assert (called.parts, [each.id for each in called.tool_calls]) == ((), ["c1"])
            assert (result.parts, result.tool_call_id) == ((), "c1")
    finally:
        description.input_kinds.remove("tools")
        tell_anew(served.gateway)


async def test_an_answer_whose_audio_is_not_known_is_still_refused(served: ServedGateway) -> None:
    answer = await served.chat(messages=[HI, {"role": "assistant", "audio": {"id": "gone"}}, HI])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[1].audio")


async def test_a_request_without_messages_is_still_refused(served: ServedGateway) -> None:
    for messages in ([], None):
        answer = await served.chat(messages=messages)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
