"""Several answers to one chat request."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from typing import Any

import openai
import pytest

from antiphon.errors import Internal
from tests.contract.fake_stages import CODE2WAV, FRAMES, ROLES, TEXTS, THINKER, Session, think
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "".join(TEXTS)


def drawn_with(served: ServedGateway, role: str = THINKER) -> set[tuple[int, int]]:
    """Seed and choice of each of the stage's sessions."""
    segments = [session.segment for session in served.fakes[role].sessions]
    return {(each.sampling[role].seed, each.choice) for each in segments}


async def test_choices_are_answers_of_their_own(served: ServedGateway) -> None:
    answer = await served.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=3, seed=(1 << 63) - 1, **SPOKEN
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    audio: list[Any] = [choice.message.audio for choice in answer.choices]
    assert [each.transcript for each in audio] == [TEXT] * 3
    assert len({each.id for each in audio}) == 3
    assert len({each.data for each in audio}) == 1
    # Each has a session of its own, which knows its number; the prompt counts once.
    for role in ROLES:
        assert drawn_with(served, role) == {((1 << 63) - 1, number) for number in range(3)}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        20,
        3 * (5 + sum(FRAMES)),
    )
    # Every one of them can be referred to.
    for each in audio:
        messages = [{"role": "assistant", "audio": {"id": each.id}}, *MESSAGES]
        assert (await served.chat(messages=messages)).status_code == 200


async def test_choices_are_drawn_apart_when_no_seed_is_given(served: ServedGateway) -> None:
    assert (await served.chat(n=2)).status_code == 200
    assert (await served.chat(n=2)).status_code == 200
    drawn = drawn_with(served)
    assert len(drawn) == 4
    assert {choice for _, choice in drawn} == {0, 1}
    assert len({seed for seed, _ in drawn}) == 2, "a seed for each request"


async def test_a_single_answer_is_the_first_of_several_with_its_seed(served: ServedGateway) -> None:
    assert (await served.chat(seed=4)).status_code == 200
    assert drawn_with(served) == {(4, 0)}
    assert (await served.chat(seed=4, n=2)).status_code == 200
    assert drawn_with(served) == {(4, 0), (4, 1)}


async def test_choices_are_streamed_together(served: ServedGateway) -> None:
    """None waits for another: each says its first words before any may go on."""
    begun = 0
    all_begun = asyncio.Event()

    async def together(session: Session) -> None:
        nonlocal begun
        begun += 1
        if begun == 2:
            all_begun.set()
        await all_begun.wait()
        await think(session)

    served.fakes[THINKER].script = together
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=2, stream=True,
        stream_options={"include_usage": True}, **SPOKEN,
    )  # fmt: skip
    said: dict[int, str] = defaultdict(str)
    pcm16: dict[int, str] = defaultdict(str)
    reasons: dict[int, str] = {}
    usages = []
    async for chunk in stream:
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            told: Any = dict(getattr(choice.delta, "audio", None) or {})
            said[choice.index] += told.get("transcript") or ""
            pcm16[choice.index] += told.get("data") or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert said == {0: TEXT, 1: TEXT}
    assert reasons == {0: "stop", 1: "stop"}
    first, second = (base64.b64decode(pcm16[index], validate=True) for index in (0, 1))
    assert first == second != b""
    assert [each.completion_tokens for each in usages] == [2 * (5 + sum(FRAMES))]


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_end_when_one_fails(served: ServedGateway, stream: bool) -> None:
    begun = asyncio.Event()

    async def fail_second(session: Session) -> None:
        if len(served.fakes[THINKER].sessions) < 2:
            await session.opened()
            await session.text("begun")
            await asyncio.Event().wait()
        await session.opened()
        await session.text("begun")
        # An error that is there before the answer's head would be its status.
        await begun.wait()
        await session.error(Internal("enough"))

    served.fakes[THINKER].script = fail_second
    if stream:
        events = await served.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, n=2, stream=True
        )
        begun.set()
        with pytest.raises(openai.APIError, match="enough"):
            async for _ in events:
                pass
    else:
        begun.set()
        response = await served.chat(n=2)
        assert (response.status_code, response.json()["error"]["message"]) == (500, "enough")
    await served.gateway.calls.wait_idle()
    for session in served.fakes[THINKER].sessions:
        await session.ended.wait()


async def test_choices_take_a_call_each() -> None:
    async with serve_gateway(max_calls=3) as served:
        refused = await served.chat(n=4)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n"), "never served"
        await served.gateway.calls.wait_idle()
        assert (await served.chat(n=3)).status_code == 200


async def test_choices_are_given_up_when_the_client_leaves(served: ServedGateway) -> None:
    async def wait(session: Session) -> None:
        await session.opened()
        await session.audio(1, 0)
        await asyncio.Event().wait()

    served.fakes[CODE2WAV].script = wait
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, n=3, stream=True, **SPOKEN
    )
    await anext(aiter(stream))
    await stream.close()
    await served.gateway.calls.wait_idle()
    for role in ROLES:
        for session in served.fakes[role].sessions:
            await session.ended.wait()
