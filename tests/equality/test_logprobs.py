"""Through the real processes, log probabilities equal the log-softmax of the reference's logits.

For streamed and whole delivery, over gRPC and HTTP, in the company of others who do not
ask and whose answers stay what they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import openai
import pytest
import torch

import antiphon
from antiphon import Delivery, TokenLogprob
from antiphon_testkit.margins import LOGPROB_TOLERANCE
from antiphon_testkit.qwen3_omni.reference import Case, Reference
from antiphon_tools.launcher.launcher import Running
from tests.equality.asking import ask, check, groups, messages
from tests.equality.test_fidelity import AUDIO_CASES, TEXT_CASES
from tests.equality.truth import Truth

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

TOP = 5


def expected_logits(reference: Reference, case: Case) -> torch.Tensor:
    """[ids of the reply, vocabulary], as `generate` gives them."""
    out = reference.model.thinker.generate(
        **reference.inputs(case.conversation),
        max_new_tokens=case.thinker_max_tokens,
        eos_token_id=reference.model.config.im_end_token_id,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.cat(out.logits)


def assert_likely(tokens: Sequence[TokenLogprob], case: Case, truth: Truth) -> None:
    """The entries are those of the reference's ids that have text, as likely as there."""
    logits = expected_logits(truth.reference, case)
    logprobs = logits.log_softmax(-1, dtype=torch.float32)
    close = LOGPROB_TOLERANCE * float(logits.abs().max())
    special = set(truth.reference.tokenizer.all_special_ids)
    ids = truth.of(case).text_ids.tolist()
    shown = [at for at, id_ in enumerate(ids) if id_ not in special]
    assert [each.token_id for each in tokens] == [ids[at] for at in shown]
    for at, token in zip(shown, tokens, strict=True):
        everything = (token, *token.top)
        theirs = [float(logprobs[at, each.token_id]) for each in everything]
        np.testing.assert_allclose([e.logprob for e in everything], theirs, rtol=0, atol=close)
        highest = logprobs[at].topk(TOP).values.tolist()
        np.testing.assert_allclose([e.logprob for e in token.top], highest, rtol=0, atol=close)


@pytest.mark.parametrize("delivery", [Delivery.STREAM, Delivery.WHOLE])
async def test_logprobs_equal_the_references(
    client: antiphon.AsyncClient, truth: Truth, delivery: Delivery
) -> None:
    cases = truth.safe([*AUDIO_CASES, *TEXT_CASES], 4)

    async def likely(case: Case) -> antiphon.Reply:
        return await client.generate(
            messages(case.conversation),
            modalities=("text",),
            max_tokens=case.thinker_max_tokens,
            top_logprobs=TOP,
            delivery=delivery,
            timeout_s=120,
        ).collect()

    company = [ask(client, each, groups=groups(truth)) for each in cases]
    replies, answers = await asyncio.gather(
        asyncio.gather(*map(likely, cases)), asyncio.gather(*company)
    )
    for case, reply, answer in zip(cases, replies, answers, strict=True):
        assert_likely(reply.logprobs, case, truth)
        data = b"".join(each.token_bytes for each in reply.logprobs)
        assert data.decode(errors="replace") == reply.text == answer.text
        check(answer, truth.of(case))


async def test_logprobs_over_http_are_those_over_grpc(
    running: Running, client: antiphon.AsyncClient, truth: Truth
) -> None:
    (case,) = truth.safe(TEXT_CASES, 1)
    (message,) = case.conversation.messages
    reply = await client.generate(
        messages(case.conversation),
        modalities=("text",),
        max_tokens=case.thinker_max_tokens,
        top_logprobs=1,
    ).collect()
    expected = [(each, *each.top) for each in reply.logprobs]
    asked: dict[str, Any] = {
        "model": running.model.name,
        "messages": [{"role": "user", "content": part.text} for part in message.parts],
        "temperature": 0,
        "max_tokens": case.thinker_max_tokens,
        "logprobs": True,
        "top_logprobs": 1,
    }
    async with openai.AsyncOpenAI(base_url=f"{running.http_url}/v1", api_key="none") as api:
        whole = await api.chat.completions.create(**asked)
        assert whole.choices[0].message.content == reply.text
        assert_same(_entries(whole.choices[0]), expected)
        text, came = "", []
        async for chunk in await api.chat.completions.create(**asked, stream=True):
            text += chunk.choices[0].delta.content or ""
            came += _entries(chunk.choices[0])
    assert text == reply.text
    assert_same(came, expected)


def _entries(choice: Any) -> list[tuple[Any, ...]]:
    """Each token with the likeliest in its place, as OpenAI's client has them."""
    entries = [] if choice.logprobs is None else choice.logprobs.content
    return [(each, *each.top_logprobs) for each in entries]


def assert_same(came: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]]) -> None:
    """The same tokens, as likely but for the rounding of another run."""
    assert [[(each.token, bytes(each.bytes or ())) for each in row] for row in came] == [
        [(each.token, each.token_bytes) for each in row] for row in expected
    ]
    np.testing.assert_allclose(
        [[each.logprob for each in row] for row in came],
        [[each.logprob for each in row] for row in expected],
        rtol=0,
        atol=1e-4,
    )
