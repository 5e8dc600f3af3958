"""Where Hugging Face raises, loses audio or is odd: what the reference does, and what we do."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest
import torch

import antiphon
from antiphon import FinishReason
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import session_pb2
from antiphon.values.chunk import Chunk
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.conversations import conversation
from antiphon_testkit.qwen3_omni.reference import Case
from antiphon_tools.launcher.launcher import Running
from tests.equality.asking import AUDIO_TOLERANCE, RATE, ask, check, decode, groups
from tests.equality.truth import Truth

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

HELLO = conversation(("user", "Hello, how are you today?"))


async def test_long_audio_equals_one_decode_where_blocks_lose_samples(
    running: Running, truth: Truth
) -> None:
    """`chunked_decode` drops samples at every block's end; we decode as one piece."""
    frames, count = 320, groups(truth)
    model = truth.reference.model
    entries = model.config.code2wav_config.codebook_size
    codes = np.random.default_rng(7).integers(0, entries, (frames, count)).astype(np.int32)
    expected = decode(truth, codes)
    lost = len(expected) - 1920 * frames
    assert lost == -555
    with torch.no_grad():
        batch = torch.from_numpy(codes.T.astype(np.int64).copy())[None]
        in_blocks = model.code2wav.chunked_decode(batch).flatten()
    assert len(in_blocks) == 1920 * frames + 2 * lost
    samples = await _vocode(running, codes.astype(np.uint16), (1, 7, 92, 200, 20))
    assert samples.shape == expected.shape
    np.testing.assert_allclose(samples, expected, rtol=0, atol=AUDIO_TOLERANCE)


async def test_reply_of_one_token_has_text_and_no_audio(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    case = Case(HELLO, thinker_max_tokens=1)
    with pytest.raises(RuntimeError):
        truth.reference.run(case)
    answer = await ask(client, case, groups=groups(truth))
    text_only = truth.reference.run(Case(HELLO, thinker_max_tokens=1, audio=False))
    assert answer.ids == text_only.text_ids.tolist()
    assert not len(answer.codes)
    assert not len(answer.samples)
    assert answer.finished.finish_reason is FinishReason.LENGTH


async def test_speech_that_ends_at_its_first_draw_has_no_frames(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    case = Case(HELLO, talker_max_tokens=1)
    with pytest.raises(RuntimeError):
        truth.reference.run(case)
    answer = await ask(client, case, groups=groups(truth))
    assert answer.ids
    assert not len(answer.codes)
    assert not len(answer.samples)


async def test_natural_dead_ends_of_the_reference_are_answers_here(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    """Prompts on which the reference's speech raises by itself: stop at once, or eos at once."""
    dead_ends = 0
    for text in ("voice one", "How two?"):
        case = Case(conversation(("user", text)), thinker_max_tokens=200)
        try:
            expected = truth.reference.run(case)
        except RuntimeError:
            dead_ends += 1
            answer = await ask(client, case, groups=groups(truth))
            assert answer.ids
            assert not len(answer.samples)
            assert answer.finished.finish_reason is FinishReason.STOP
        else:
            check(await ask(client, case, groups=groups(truth)), expected)
    assert dead_ends


async def test_speech_without_a_user_message_is_refused(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    case = Case(conversation(("system", "Speak.")), thinker_max_tokens=8)
    with pytest.raises((RuntimeError, IndexError)):
        truth.reference.run(case)
    with pytest.raises(antiphon.AntiphonError, match="user message") as caught:
        await ask(client, case, groups=groups(truth))
    assert caught.value.code.value == "invalid_argument"


async def test_text_without_a_user_message_is_answered(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    case = Case(conversation(("system", "Speak.")), thinker_max_tokens=8, audio=False)
    answer = await ask(client, case, groups=groups(truth))
    assert answer.ids == truth.of(case).text_ids.tolist()


async def test_unknown_voice_is_refused_with_the_list(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    case = Case(HELLO, voice="nobody")
    with pytest.raises(NotImplementedError):
        truth.reference.run(case)
    with pytest.raises(antiphon.AntiphonError, match=r"ethan.*aiden.*chelsie") as caught:
        await ask(client, case, groups=groups(truth))
    assert caught.value.field == "voice"


async def test_last_token_of_a_cut_reply_is_not_spoken(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    """The token at the limit has no row; a longer limit lets it be heard."""
    spoken = {}
    for limit in (3, 4):
        case = Case(HELLO, thinker_max_tokens=limit, talker_max_tokens=30)
        answer = await ask(client, case, groups=groups(truth))
        check(answer, truth.of(case))
        spoken[limit] = answer
    assert spoken[4].ids[:3] == spoken[3].ids
    assert spoken[3].codes.tobytes() != spoken[4].codes.tobytes()


async def test_company_does_not_change_an_answer_where_a_batch_would(
    client: antiphon.AsyncClient, truth: Truth
) -> None:
    """The reference's batch rows that stop early differ; our sessions equal batch 1."""
    cases = [Case(HELLO, thinker_max_tokens=limit, talker_max_tokens=20) for limit in (3, 60, 7, 2)]
    answers = await asyncio.gather(*(ask(client, case, groups=groups(truth)) for case in cases))
    for case, answer in zip(cases, answers, strict=True):
        check(answer, truth.of(case))


async def test_audio_positions_are_counted(
    client: antiphon.AsyncClient,
) -> None:
    """Half a second of audio is seven positions of the prompt."""
    time = np.arange(RATE // 2) / RATE
    tone = np.sin(2 * np.pi * 300 * time).astype(np.float32)
    case = Case(conversation(("user", [tone, "What?"])), thinker_max_tokens=4, audio=False)
    answer = await ask(client, case, groups=1)
    assert answer.finished.usage.prompt_audio_tokens == 7


async def _vocode(running: Running, codes: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Samples of codes [T, groups], through the code2wav process alone."""
    assert sum(sizes) == len(codes)
    address = running.processes["code2wav"].address
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call = stage_stub(channel).RunSession()
        reply = session_pb2.Destination(reply=session_pb2.ReplyTarget())
        route = session_pb2.Route(edge="audio", destinations=[reply])
        opening = session_pb2.SessionOpen(session_id="vocode", routes=[route])
        turn = session_pb2.SegmentOpen(segment=0, outputs=["audio"])
        await call.write(session_pb2.SessionRequest(open=opening))
        await call.write(session_pb2.SessionRequest(segment_open=turn))
        position = 0
        for sequence, size in enumerate(sizes):
            ends = position + size == len(codes)
            chunk = Chunk(
                "vocode",
                "codes",
                sequence=sequence,
                position=position,
                tensors={"codes": codes[position : position + size]},
                segment_finished=ends,
                finish_reason=FinishReason.STOP if ends else None,
            )
            await call.write(session_pb2.SessionRequest(chunk=chunk_to_proto(chunk)))
            position += size
        await call.done_writing()
        audio = [
            chunk_from_proto(response.chunk).tensors
            async for response in call
            if response.HasField("chunk")
        ]
    return np.concatenate([tensors["samples"] for tensors in audio if tensors])
