"""Turns that are answered while their recordings are made, through the real services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.pipelines.qwen3_omni import CODE2WAV, TALKER, THINKER
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    TextPart,
)
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.media.attachments import Attachments
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.audio_out import wav_file
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.call_segment import CallSegment
from antiphon_gateway.sessions.events import AudioProduced, SegmentFinished, TextProduced
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen3_omni.reference import Case, ReferenceOutput
from antiphon_tools.launcher.launcher import Running
from tests.equality.truth import Truth

pytestmark = pytest.mark.asyncio(loop_scope="session")

RATE_HZ = 16_000
TOKENS = 16
BOTH = frozenset({"text", "audio"})
GREEDY: Mapping[str, SamplingRequest] = {
    role: SamplingRequest(temperature=0.0, max_tokens=TOKENS) for role in (THINKER, TALKER)
}

BLOCKS = {"torch": 17, "vllm": 128}
"""Positions that may be computed again: vLLM's blocks on a CPU; the last ones of a recording."""

Pcm16 = npt.NDArray[np.int16]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def calls(running: Running) -> AsyncIterator[Calls]:
    """A gateway's calls, in this process, to the services that run."""
    stages = {
        role: StageConfig(addresses=(running.processes[role].address,))
        for role in (THINKER, TALKER, CODE2WAV)
    }
    deployment = Deployment(model=str(running.model), stages=stages)
    async with Fleet(deployment) as fleet:
        await fleet.wait_ready()
        yield Calls(fleet, GatewayConfig(), {}, Metrics(in_flight=lambda: 0.0))


def spoken(seconds: float, seed: int) -> Pcm16:
    at = np.arange(round(seconds * RATE_HZ))
    noise = np.random.default_rng(seed).standard_normal(len(at)) * 100
    return (noise + 6000 * np.sin(at * (0.05 + 0.01 * seed)) * np.sin(at / 9000)).astype(np.int16)


def said(*turns: Pcm16) -> tuple[ConversationMessage, ...]:
    """Turns of a user, each answered but the last."""
    messages = []
    for index in range(len(turns)):
        messages.append(ConversationMessage("user", (AudioPart(index, alone=True),)))
        messages.append(ConversationMessage("assistant", (TextPart("Two people"),)))
    return tuple(messages[:-1])


def floats(pcm16: Pcm16) -> npt.NDArray[np.float32]:
    return pcm16.astype(np.float32) / 32768


def truly(truth: Truth, *turns: Pcm16) -> ReferenceOutput:
    whole = Conversation(said(*turns), tuple(map(floats, turns)))
    return truth.reference.run(Case(whole, thinker_max_tokens=TOKENS, talker_max_tokens=TOKENS))


def safe_turns(truth: Truth) -> tuple[list[Pcm16], list[ReferenceOutput]]:
    """Two turns in whose answers no greedy choice was close."""
    for seed in range(10):
        turns = [spoken(12.0, seed), spoken(8.5, seed + 20)]
        answers = [truly(truth, *turns[:count]) for count in (1, 2)]
        if all(answer.min_margin >= MIN_MARGIN for answer in answers):
            return turns, answers
    raise AssertionError("no seed has safe margins")


def order(*turns: Pcm16, live: bool) -> Order:
    """What asks for the answer to the last turn, which a live order does not bring."""
    messages = said(*turns)
    if live:
        part = AudioPart(len(turns) - 1, live=True)
        messages = (*messages[:-1], replace_parts(messages[-1], part))
        turns = turns[:-1]
    recordings = [
        Recording(f"turn {index}", wav_file(each.tobytes(), RATE_HZ))
        for index, each in enumerate(turns)
    ]
    return Order(
        messages,
        Attachments(recordings=recordings),
        outputs=BOTH,
        voice="ethan",
        sampling=GREEDY,
        recordings_alone=True,
    )


def replace_parts(message: ConversationMessage, *parts: AudioPart) -> ConversationMessage:
    return ConversationMessage(message.role, parts)


async def answer(segment: CallSegment) -> tuple[list[int], list[list[int]], SegmentFinished]:
    ids: list[int] = []
    codes: list[list[int]] = []
    async for event in segment:
        match event:
            case TextProduced():
                ids += event.ids.tolist()
            case AudioProduced():
                codes += event.frames.tolist()
            case SegmentFinished():
                finished = event
    return ids, codes, finished


async def test_live_turns_equal_the_reference_and_reuse_each_other(
    calls: Calls, truth: Truth, thinker_engine: str
) -> None:
    turns, expected = safe_turns(truth)
    async with calls.session(await calls.prepare(order(turns[0], live=False))) as session:
        for count, answered in enumerate(expected, start=1):
            recording = floats(turns[count - 1])
            prepared = await calls.prepare(order(*turns[:count], live=True))
            segment = await session.ask(prepared, last=count == len(turns), live=True)
            for start in range(0, len(recording), 1600):
                segment.hear(recording[start : start + 1600])
            segment.finish_input()
            ids, codes, finished = await answer(segment)
            assert ids == answered.text_ids.tolist()
            assert codes == answered.codes.tolist()
            assert finished.usage.prompt_tokens == len(answered.prompt_ids)
    # The first recording was heard live, and came whole with the second turn.
    known = len(expected[0].prompt_ids)
    assert known > BLOCKS[thinker_engine]
    assert finished.usage.prompt_cached_tokens > known - BLOCKS[thinker_engine]


async def test_live_turn_that_is_cancelled_is_answered_in_another_way(
    calls: Calls, truth: Truth
) -> None:
    turns, (expected, _) = safe_turns(truth)
    async with calls.session(await calls.prepare(order(turns[0], live=False))) as session:
        prepared = await calls.prepare(order(turns[0], live=True))
        segment = await session.ask(prepared, last=False, live=True)
        segment.hear(floats(turns[0])[: 6 * RATE_HZ])
        segment.cancel()
        segment.hear(floats(turns[0])[6 * RATE_HZ :])
        _, _, finished = await answer(segment)
        assert finished.finish_reason is FinishReason.CANCELLED
        prepared = await calls.prepare(order(turns[0], live=False))
        ids, codes, _ = await answer(await session.ask(prepared, last=True))
    assert (ids, codes) == (expected.text_ids.tolist(), expected.codes.tolist())
