"""The next turn of a conversation: what an assistant said, as OpenAI's client sends it back."""

from __future__ import annotations

import time
from typing import Any

import pytest

from antiphon.values.conversation import TextPart, from_tensors
from antiphon_gateway.endpoints.openai.spoken import OVERHEAD_BYTES
from tests.contract.fake_stages import THINKER
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAID = "Hello wörld!"


def heard(served: ServedGateway) -> list[tuple[str, str]]:
    """Who says what in the conversation that came to the thinker last."""
    chunk = served.fakes[THINKER].sessions[-1].input
    assert chunk is not None
    told = []
    for message in from_tensors(chunk.tensors).messages:
        (part,) = message.parts
        assert isinstance(part, TextPart)
        told.append((message.role, part.text))
    return told


NEXT_TURN = [("user", "Hi"), ("assistant", SAID), ("user", "And then?")]


async def test_chat_goes_on_with_the_message_that_the_client_has(served: ServedGateway) -> None:
    messages = list(MESSAGES)
    first = await served.openai.chat.completions.create(model=MODEL, messages=messages, **SPOKEN)
    messages += [first.choices[0].message, {"role": "user", "content": "And then?"}]
    await served.openai.chat.completions.create(model=MODEL, messages=messages)
    assert heard(served) == NEXT_TURN


async def ask_again(served: ServedGateway, audio: dict[str, Any]) -> Any:
    return await served.chat(
        messages=[
            *MESSAGES,
            {"role": "assistant", "audio": audio},
            {"role": "user", "content": "And then?"},
        ]
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_knows_what_it_said_by_its_id_until_it_expires(
    served: ServedGateway, stream: bool
) -> None:
    before = int(time.time())
    audio: Any
    if stream:
        chunks = await served.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, **SPOKEN
        )
        audio = {}
        async for chunk in chunks:
            told = dict(getattr(chunk.choices[0].delta, "audio", None) or {})
            audio |= {name: value for name, value in told.items() if value is not None}
    else:
        answer = await served.chat(**SPOKEN)
        audio = answer.json()["choices"][0]["message"]["audio"]
    keep_s = 3600
    assert before + keep_s <= audio["expires_at"] <= int(time.time()) + keep_s
    response = await ask_again(served, {"id": audio["id"]})
    assert response.status_code == 200, response.text
    assert heard(served) == NEXT_TURN


async def test_chat_refuses_an_answer_that_it_does_not_know(served: ServedGateway) -> None:
    response = await ask_again(served, {"id": "audio_of_another"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages[1].audio")
    assert "transcript" in error["message"]


async def test_chat_says_at_once_that_an_answer_is_not_kept_when_there_is_no_room() -> None:
    room = 2 * (OVERHEAD_BYTES + len(SAID.encode()))
    async with serve_gateway(max_spoken_bytes=room) as served:
        answers = [(await served.chat(**SPOKEN)).json() for _ in range(3)]
        kept = [each["choices"][0]["message"]["audio"] for each in answers]
        left_s = [
            audio["expires_at"] - each["created"] for audio, each in zip(kept, answers, strict=True)
        ]
        assert min(left_s[:2]) >= 3600 > 60 > left_s[2]
        statuses = [(await ask_again(served, {"id": each["id"]})).status_code for each in kept]
        assert statuses == [200, 200, 400]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "audio": {"transcript": "a"}}, "messages[0].audio"),
        ({"role": "assistant", "audio": {}}, "messages[0].audio"),
        ({"role": "assistant", "audio": {"id": 5}}, "messages[0].audio.id"),
        ({"role": "assistant", "audio": {"name": "a"}}, "messages[0].audio"),
    ],
)
async def test_chat_refuses_an_audio_that_is_none(
    served: ServedGateway, message: dict[str, Any], param: str
) -> None:
    response = await served.chat(messages=[message, *MESSAGES])
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
