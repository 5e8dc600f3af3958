"""Log probabilities over HTTP: OpenAI's shapes, with the real client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import FinishReason
from antiphon.wire.logprobs import logprobs_to_tensors
from tests.contract.fake_stages import THINKER, Session
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

E_ACUTE = "é".encode()
END = TokenLogprob(9, b"<|im_end|>", -3.5)
NEVER = TokenLogprob(8, b"", float("-inf"))
PIECES: list[tuple[str, list[TokenLogprob]]] = [
    ("He", [TokenLogprob(1, b"He", -0.25, (TokenLogprob(1, b"He", -0.25), END))]),
    # Held back by the thinker: an id whose text comes later.
    ("", []),
    (
        "yé",
        [
            TokenLogprob(2, b"y", -1.5, (END, NEVER)),
            TokenLogprob(3, E_ACUTE[:1], -2.0, (END, NEVER)),
            TokenLogprob(4, E_ACUTE[1:], 0.0, (END, NEVER)),
        ],
    ),
    # The rest of a token's text: none begins here.
    ("!", []),
]
EXPECTED: list[dict[str, Any]] = [
    {"token": "He", "logprob": -0.25, "bytes": [72, 101]},
    {"token": "y", "logprob": -1.5, "bytes": [121]},
    {"token": r"\xc3", "logprob": -2.0, "bytes": [0xC3]},
    {"token": r"\xa9", "logprob": 0.0, "bytes": [0xA9]},
]
IM_END: dict[str, Any] = {"token": "<|im_end|>", "logprob": -3.5, "bytes": [*b"<|im_end|>"]}


async def tell(session: Session, pieces: Sequence[tuple[str, list[TokenLogprob]]] = PIECES) -> None:
    """A thinker that tells how likely its tokens were, as its engine would."""
    await session.opened()
    for number, (text, tokens) in enumerate(pieces):
        tensors = {
            "ids": np.array([number], np.int32),
            "utf8": np.frombuffer(text.encode(), np.uint8),
            **logprobs_to_tensors(tokens),
        }
        finish = FinishReason.STOP if number == len(pieces) - 1 else None
        await session.chunk("text", tensors, position=number, finish=finish)
    await session.report(output_positions=len(pieces))


def asked_of(served: ServedGateway) -> int | None:
    """How many likely tokens the thinker was asked for; None: not at all."""
    sampling = served.fakes[THINKER].sessions[-1].segment.sampling[THINKER]
    return sampling.top_logprobs if sampling.HasField("top_logprobs") else None


def plain(entries: Any) -> list[dict[str, Any]]:
    """The client's values without the likeliest tokens."""
    return [entry.model_dump(exclude={"top_logprobs"}) for entry in entries]


async def test_chat_has_the_logprobs_of_its_text_when_asked(served: ServedGateway) -> None:
    served.fakes[THINKER].script = tell
    completion = await served.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    assert asked_of(served) == 2
    (choice,) = completion.choices
    assert choice.message.content == "Heyé!"
    assert choice.logprobs is not None
    assert choice.logprobs.refusal is None
    assert choice.logprobs.content is not None
    assert plain(choice.logprobs.content) == EXPECTED
    first, *_, last = [entry.top_logprobs for entry in choice.logprobs.content]
    assert [each.model_dump() for each in first] == [EXPECTED[0], IM_END]
    never = {"token": "", "logprob": -9999.0, "bytes": None}
    assert [each.model_dump() for each in last] == [IM_END, never]


async def test_chat_streams_logprobs_with_the_text_that_they_are_of(served: ServedGateway) -> None:
    served.fakes[THINKER].script = tell
    stream = await served.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2, stream=True
    )
    told = [
        (choice.delta.content, None if choice.logprobs is None else choice.logprobs.content)
        async for chunk in stream
        for choice in chunk.choices
    ]
    assert [(text, None if entries is None else plain(entries)) for text, entries in told] == [
        ("", None),
        ("He", EXPECTED[:1]),
        ("yé", EXPECTED[1:]),
        ("!", None),
        (None, None),
    ]


async def test_chat_stream_helper_adds_logprobs_up(served: ServedGateway) -> None:
    served.fakes[THINKER].script = tell
    async with served.openai.chat.completions.stream(
        model=MODEL, messages=MESSAGES, logprobs=True
    ) as stream:
        completion = await stream.get_final_completion()
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert plain(logprobs.content) == EXPECTED


async def test_chat_has_logprobs_of_the_transcript_when_spoken(served: ServedGateway) -> None:
    served.fakes[THINKER].script = tell
    spoken = {**SPOKEN, "logprobs": True, "top_logprobs": 2}
    (choice,) = (await served.chat(**spoken)).json()["choices"]
    assert choice["message"]["content"] is None
    assert choice["message"]["audio"]["transcript"] == "Heyé!"
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [
        entry["token"] for entry in EXPECTED
    ]


async def test_chat_asks_for_no_others_when_only_logprobs_is_given(served: ServedGateway) -> None:
    async def alone(session: Session) -> None:
        await tell(session, [("Hi", [TokenLogprob(5, b"Hi", -0.5)])])

    served.fakes[THINKER].script = alone
    (choice,) = (await served.chat(logprobs=True)).json()["choices"]
    assert asked_of(served) == 0
    assert choice["logprobs"] == {
        "content": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}],
        "refusal": None,
    }


async def test_chat_has_an_empty_list_when_the_answer_has_no_text(served: ServedGateway) -> None:
    async def silent(session: Session) -> None:
        await tell(session, [("", [])])

    served.fakes[THINKER].script = silent
    (choice,) = (await served.chat(logprobs=True)).json()["choices"]
    assert choice["logprobs"] == {"content": [], "refusal": None}


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"top_logprobs": 0}])
async def test_chat_asks_for_nothing_when_no_logprobs_are_wanted(
    served: ServedGateway, fields: dict[str, Any]
) -> None:
    (choice,) = (await served.chat(**fields)).json()["choices"]
    assert asked_of(served) is None
    assert choice["logprobs"] is None


async def test_chat_is_an_error_when_the_thinkers_logprobs_cannot_be_read(
    served: ServedGateway,
) -> None:
    async def lie(session: Session) -> None:
        await session.opened()
        tensors = logprobs_to_tensors([END]) | {"logprob_bytes": np.zeros(1, np.uint8)}
        ids, utf8 = np.zeros(1, np.int32), np.frombuffer(b"a", np.uint8)
        await session.chunk("text", {"ids": ids, "utf8": utf8, **tensors})

    served.fakes[THINKER].script = lie
    response = await served.chat(logprobs=True)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "data_loss"
