from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import openai
import pytest

from antiphon.v1 import session_pb2
from antiphon.values.conversation import from_tensors
from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import THINKER, Session, think
from tests.contract.served_gateway import MESSAGES, MODEL, ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_chat_answers_text_when_modalities_are_absent(served: ServedGateway) -> None:
    completion = await served.openai.chat.completions.create(model=MODEL, messages=MESSAGES)
    (choice,) = completion.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "Hello wörld!"
    assert choice.message.audio is None
    assert choice.finish_reason == "stop"
    assert (completion.object, completion.model) == ("chat.completion", MODEL)


async def test_chat_answers_the_sync_client(served: ServedGateway) -> None:
    def ask() -> str | None:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
            return answer.choices[0].message.content

    assert await asyncio.to_thread(ask) == "Hello wörld!"


async def test_chat_touches_only_the_thinker_when_audio_is_not_wanted(
    served: ServedGateway,
) -> None:
    assert (await served.chat()).status_code == 200
    assert not served.fakes["talker"].sessions
    assert not served.fakes["code2wav"].sessions
    (session,) = served.fakes[THINKER].sessions
    assert [route.edge for route in session.opening.routes] == ["text"]
    assert session.opening.routes[0].destinations[0].HasField("reply")
    assert list(session.segment.outputs) == ["text"]
    assert session.segment.voice == ""


async def test_chat_half_closes_the_session_when_it_is_complete(served: ServedGateway) -> None:
    await served.chat()
    (session,) = served.fakes[THINKER].sessions
    await session.half_closed.wait()
    assert not session.cancelled.is_set()


async def test_chat_reports_usage(served: ServedGateway) -> None:
    completion = await served.openai.chat.completions.create(model=MODEL, messages=MESSAGES)
    usage: Any = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (20, 5, 25)
    details = usage.prompt_tokens_details
    assert (details.audio_tokens, details.text_tokens, details.cached_tokens) == (7, 13, 4)
    spoken = usage.completion_tokens_details
    assert (spoken.audio_tokens, spoken.text_tokens, spoken.reasoning_tokens) == (0, 5, 0)


async def test_chat_sends_the_whole_conversation_to_the_thinker(served: ServedGateway) -> None:
    response = await served.chat(
        messages=[
            {"role": "system", "content": "Be kind."},
            {"role": "developer", "content": "Be brief.", "name": "dev"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}],
            },
            {"role": "assistant", "content": "C"},
            {"role": "user", "content": "D"},
        ]
    )
    assert response.status_code == 200
    sent = served.fakes[THINKER].sessions[0].input
    assert sent is not None
    assert (sent.edge, sent.segment_finished, sent.finish_reason) == (
        "input", True, FinishReason.STOP,
    )  # fmt: skip
    told = msgspec.to_builtins(from_tensors(sent.tensors).messages)
    assert [(m["role"], [p["text"] for p in m["parts"]]) for m in told] == [
        ("system", ["Be kind."]),
        ("system", ["Be brief."]),
        ("user", ["A", "B"]),
        ("assistant", ["C"]),
        ("user", ["D"]),
    ]


async def test_chat_passes_sampling_on(served: ServedGateway) -> None:
    await served.chat(
        temperature=0.5,
        top_p=0.25,
        top_k=5,
        repetition_penalty=1.5,
        seed=7,
        max_tokens=9,
        max_completion_tokens=9,
        stop=["a", "b"],
    )
    sampling = served.fakes[THINKER].sessions[0].segment.sampling
    assert list(sampling) == [THINKER]
    assert sampling[THINKER] == session_pb2.Sampling(
        temperature=0.5,
        top_p=0.25,
        top_k=5,
        repetition_penalty=1.5,
        seed=7,
        max_tokens=9,
        stop=["a", "b"],
    )


async def test_chat_leaves_sampling_to_the_model_but_for_a_drawn_seed(
    served: ServedGateway,
) -> None:
    await served.chat(stop="end")
    await served.chat()
    first, second = (s.segment.sampling[THINKER] for s in served.fakes[THINKER].sessions)
    assert {field.name for field, _ in first.ListFields()} == {"seed", "stop"}
    assert list(first.stop) == ["end"]
    assert {field.name for field, _ in second.ListFields()} == {"seed"}
    assert first.seed != second.seed
    assert max(first.seed, second.seed) < 1 << 63


async def test_chat_says_length_when_the_text_was_cut(served: ServedGateway) -> None:
    async def cut(session: Session) -> None:
        await session.opened()
        await session.text("He", finish=FinishReason.LENGTH)
        await session.report(FinishReason.LENGTH, output_positions=2)

    served.fakes[THINKER].script = cut
    choice = (await served.chat()).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "He"


async def test_chat_answers_when_the_reply_is_empty(served: ServedGateway) -> None:
    async def silent(session: Session) -> None:
        await session.opened()
        await session.chunk("text", finish=FinishReason.STOP)
        await session.report(output_positions=1)

    served.fakes[THINKER].script = silent
    assert (await served.chat()).json()["choices"][0]["message"]["content"] == ""


async def test_chat_completes_when_a_stage_ends_without_a_report(served: ServedGateway) -> None:
    async def unreported(session: Session) -> None:
        await session.opened()
        await session.text("Hi", finish=FinishReason.STOP)

    fake = served.fakes[THINKER]
    fake.script, fake.ends_itself = unreported, True
    response = await served.chat()
    assert response.json()["choices"][0]["message"]["content"] == "Hi"


async def test_chat_accepts_fields_that_ask_for_nothing(served: ServedGateway) -> None:
    response = await served.chat(
        n=1,
        user="u",
        metadata={"a": "b"},
        store=False,
        use_audio_in_video=False,
        mm_processor_kwargs={},
        service_tier="auto",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        tools=[],
        tool_choice="auto",
        logprobs=False,
        logit_bias={},
        presence_penalty=0,
        frequency_penalty=0.0,
        stream=False,
        seed=None,
    )
    assert response.status_code == 200


async def test_chat_takes_the_deployments_delivery_unless_the_request_says() -> None:
    async with serve_gateway(delivery={"text": "whole"}) as served:
        assert (await served.chat()).status_code == 200
        assert (await served.chat(delivery="stream")).status_code == 200
        first, second = (dict(s.segment.delivery) for s in served.fakes[THINKER].sessions)
    assert first == {"text": session_pb2.DELIVERY_WHOLE}
    assert second["text"] == session_pb2.DELIVERY_STREAM


async def test_chat_answers_many_at_once(served: ServedGateway) -> None:
    responses = await asyncio.gather(*(served.chat() for _ in range(20)))
    assert {response.status_code for response in responses} == {200}
    sessions = served.fakes[THINKER].sessions
    assert len({session.opening.session_id for session in sessions}) == 20


async def test_text_is_whole_when_the_thinker_answers_before_the_talker_opens(
    served: ServedGateway,
) -> None:
    late = asyncio.Event()

    async def open_late(session: Session) -> None:
        await late.wait()
        await session.opened()
        await session.report()

    async def think_first(session: Session) -> None:
        await think(session)
        late.set()

    served.fakes[THINKER].script, served.fakes["talker"].script = think_first, open_late
    response = await served.chat(
        modalities=["text", "audio"], audio={"voice": "ethan", "format": "wav"}
    )
    assert response.json()["choices"][0]["message"]["audio"]["transcript"] == "Hello wörld!"
