"""Where Hugging Face raises or is odd: what the reference does, and what the services do."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import antiphon
from antiphon import FinishReason, SamplingRequest
from antiphon_testkit.conversations import conversation
from antiphon_testkit.qwen2_5_omni.reference import Omni25Case
from antiphon_tools.launcher.launcher import Running
from tests.equality.asking import ask
from tests.equality.qwen2_5_omni.omni25_check import check
from tests.equality.qwen2_5_omni.omni25_truth import Omni25Truth

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

HELLO = conversation(("user", "Hello, how are you today?"))
CASES = [
    Omni25Case(conversation(("user", text)), talker_max_tokens=60)
    for text in ("Hello, how are you today?", "Count the days", "find the number", "x", "long one")
]
PENALISED = {
    penalty: [replace(case, talker_repetition_penalty=penalty) for case in CASES]
    for penalty in (1e-3, 0.5, 1.0, 2.0)
}


async def test_reply_of_one_token_has_text_and_no_audio(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    case = Omni25Case(HELLO, thinker_max_tokens=1)
    with pytest.raises(ValueError, match="non-empty"):
        truth.reference.run(case)
    answer = await ask(client, case, groups=1)
    expected = truth.reference.run(replace(case, audio=False))
    assert answer.ids == expected.text_ids.tolist()
    assert not len(answer.codes)
    assert not len(answer.samples)
    assert answer.finished.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("penalty", [0.5, 1.0, 2.0])
async def test_penalty_is_over_mask_pad_and_start_too(
    client: antiphon.AsyncClient, truth: Omni25Truth, penalty: float
) -> None:
    """The talker's prompt has these ids in the reference. Made likelier, mask and pad are drawn:
    the first has no row in the decoder, and never leaves; the second ends speech."""
    for case in truth.safe(PENALISED[penalty], 2):
        talker = SamplingRequest(repetition_penalty=penalty)
        answer = await ask(client, case, groups=1, talker=talker, seed=case.seed)
        check(answer, case, truth)


async def test_id_without_decoder_row_is_spoken_on_from_and_never_leaves(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    spoken = (case for case in PENALISED[1.0] if truth.ids.codec_mask in truth.of(case).drawn)
    (case,) = truth.safe(spoken, 1)
    with pytest.raises(IndexError):
        truth.reference.run(case)
    talker = SamplingRequest(repetition_penalty=1.0)
    check(await ask(client, case, groups=1, talker=talker, seed=case.seed), case, truth)


async def test_speech_is_empty_when_its_first_draw_ends_it(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    """A tiny penalty is a large reward: for the pad id, from the start."""
    ended = (each for each in PENALISED[1e-3] if truth.of(each).drawn[0] == truth.ids.codec_pad)
    (case,) = truth.safe(ended, 1)
    talker = SamplingRequest(repetition_penalty=1e-3)
    answer = await ask(client, case, groups=1, talker=talker)
    check(answer, case, truth)
    assert not len(answer.samples)


async def test_pad_ends_speech_as_the_end_does(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    ended = (each for each in CASES if truth.of(each).drawn[-1] == truth.ids.codec_pad)
    (case,) = truth.safe(ended, 1)
    assert truth.spoken(case)
    check(await ask(client, case, groups=1, seed=case.seed), case, truth)


@pytest.mark.parametrize("limit", [2, 3, 5])
async def test_reply_that_its_limit_cuts_is_spoken_as_far_as_it_goes(
    client: antiphon.AsyncClient, truth: Omni25Truth, limit: int
) -> None:
    cases = [replace(each, thinker_max_tokens=limit) for each in CASES]
    cut = (each for each in cases if truth.of(each).text_finish is FinishReason.LENGTH)
    (case,) = truth.safe(cut, 1)
    check(await ask(client, case, groups=1, seed=case.seed), case, truth)


async def test_voice_is_found_in_any_case_and_the_default_is_the_references(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    (case,) = truth.safe(CASES, 1)
    for voice in ("", "CHELSIE"):
        answer = await ask(client, replace(case, voice=voice), groups=1, seed=case.seed)
        check(answer, case, truth)


async def test_unknown_voice_is_refused_with_the_list(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    case = Omni25Case(HELLO, voice="Zoe")
    with pytest.raises(ValueError, match="not available"):
        truth.reference.run(case)
    with pytest.raises(antiphon.InvalidArgument, match="chelsie, ethan") as refused:
        await ask(client, case, groups=1)
    assert refused.value.field == "voice"


async def test_answers_are_right_when_others_are_cancelled_before_and_beside(
    client: antiphon.AsyncClient, truth: Omni25Truth
) -> None:
    """There are fewer slots than calls that are cancelled."""
    (case,) = truth.safe(CASES, 1)
    expected = truth.waveform(truth.spoken(case), case)
    for events in (0, 1, 2, 3, 5):
        speaking = [
            client.generate("Tell me about water.", sampling={"talker": SamplingRequest(seed=seed)})
            for seed in range(4)
        ]
        for generation in speaking:
            for _ in range(events):
                await anext(generation)
        beside = await ask(client, case, groups=1, seed=case.seed)
        for generation in speaking:
            generation.cancel()
        np.testing.assert_allclose(beside.samples, expected, rtol=0, atol=1e-4)
    check(await ask(client, case, groups=1, seed=case.seed), case, truth)


@pytest.mark.parametrize("service", ["gateway", "talker", "token2wav"])
async def test_every_service_is_loaded_with_made_up_input(
    running: Running, checkpoint: Path, service: str, tmp_path: Path
) -> None:
    result = tmp_path / "result.json"
    address = running.http_url
    if service != "gateway":
        address = running.processes[service].address
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "antiphon_tools.load", service, "--model", str(checkpoint),
        "--target", address, "--seconds", "1", "--warm-up", "0",
        "--sessions", "2", "--frames", "30", "--reply-tokens", "8", "--json", str(result),
        "--slo", "duration=60",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    requests = json.loads(result.read_text())["requests"]
    assert requests["succeeded"] == requests["due"] > 0
