"""Texts that come in pieces, through the real stages and the SDK's clients of one stage."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio

from antiphon import AsyncStageClient
from antiphon.deployment.schema import StageConfig
from antiphon.errors import DeadlineExceeded, InvalidArgument
from antiphon.pipelines.cosyvoice3 import CODE2WAV, CODES, INPUT, PIPELINE, TALKER, VOICE
from antiphon.pipelines.edges import PIECE
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2_grpc
from antiphon.values.chunk import Chunk
from antiphon.values.segment import FinishReason
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon_testkit.cosyvoice3.tiny_checkpoint import VOICES, build_tiny_cosyvoice
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.cosyvoice3.cosy_cases import (
    INSTRUCT,
    INSTRUCTION,
    REFERENCE_TEXT,
    PiecedCase,
    draw_few_ends,
    pieced_cases,
    reference_audio,
)
from tests.equality.read_aloud import SLOTS
from tests.equality.recording import SEED

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

TO_CLIENT = session_pb2.Destination(reply=session_pb2.ReplyTarget())
HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "stage-client.md"
CASES = [case for case in pieced_cases() if not case.asks]
RECORDED = {each["case"]: each for each in json.loads((HERE / "pieces.json").read_text())["cases"]}
NAMED = {case.name: case for case in CASES}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """All services on the checkpoint that the vendor's code was asked on."""
    folder = tmp_path_factory.mktemp("pieces") / "tiny"
    build_tiny_cosyvoice(folder, VOICES, SEED)
    draw_few_ends(folder, asks=False)
    config = dict.fromkeys(PIPELINE.roles, StageConfig(slots=SLOTS))
    async with WarmLauncher(local_deployment(folder, **config)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def talker(stages: Running) -> AsyncIterator[AsyncStageClient]:
    async with AsyncStageClient(stages.processes[TALKER].address) as client:
        yield client


def segment_of(case: PiecedCase) -> session_pb2.SegmentOpen:
    """A case's voice and seed."""
    segment = session_pb2.SegmentOpen(outputs=["audio"], voice=case.voice, last=True)
    segment.sampling[TALKER].seed = RECORDED[case.name]["seed"]
    if not case.voice:
        samples = reference_audio().astype(np.float32) / 32768
        segment.options["reference_audio"].float32 = samples.tobytes()
        if case.mode == INSTRUCT:
            segment.options["instruction"].text = INSTRUCTION
        else:
            segment.options["reference_text"].text = REFERENCE_TEXT
    return segment


def piece(sequence: int, data: bytes, *, last: bool = False) -> chunk_pb2.Chunk:
    """A piece of a text."""
    return chunk_to_proto(
        Chunk(
            "",
            INPUT,
            sequence=sequence,
            tensors={PIECE: np.frombuffer(data, np.uint8)},
            segment_finished=last,
            finish_reason=FinishReason.STOP if last else None,
        )
    )


def by_size(text: str, size: int) -> list[bytes]:
    data = text.encode()
    return [data[at : at + size] for at in range(0, len(data), size)]


def codes_in(responses: Sequence[session_pb2.SessionResponse]) -> list[int]:
    chunks = [chunk_from_proto(each.chunk) for each in responses if each.HasField("chunk")]
    made = [each.tensors[CODES] for each in chunks if each.edge == CODES and each.tensors]
    return [int(code) for frames in made for code in frames[:, 0]]


async def speak(talker: AsyncStageClient, case: PiecedCase, cut: Sequence[bytes]) -> list[int]:
    """The codes of a case."""
    async with talker.session({VOICE: (), CODES: ()}) as session:
        await session.open_segment(segment_of(case))
        for sequence, data in enumerate(cut):
            await session.send_chunk(piece(sequence, data, last=sequence + 1 == len(cut)))
        session.finish()
        return codes_in([response async for response in session])


async def read_codes(session: Any, count: int) -> list[session_pb2.SessionResponse]:
    """Responses until so many codes have come."""
    responses: list[session_pb2.SessionResponse] = []
    while len(codes_in(responses)) < count:
        responses.append(await anext(session))
    return responses


async def test_every_case_is_said_as_recorded_alone_and_in_company(
    talker: AsyncStageClient,
) -> None:
    for case in CASES[:4]:
        assert await speak(talker, case, by_size(case.text, 3)) == RECORDED[case.name]["codes"]
    for start in range(0, len(CASES), SLOTS):
        group = CASES[start : start + SLOTS]
        told = await asyncio.gather(
            *(speak(talker, case, by_size(case.text, at + 1)) for at, case in enumerate(group))
        )
        assert told == [RECORDED[case.name]["codes"] for case in group]


async def test_codes_leave_before_the_text_ends_and_a_pause_stops_nobody(
    talker: AsyncStageClient,
) -> None:
    case, other = NAMED["instruct-long"], NAMED["zero-shot-english"]
    half = case.text[: len(case.text) // 2].encode()
    async with talker.session({VOICE: (), CODES: ()}) as session:
        await session.open_segment(segment_of(case))
        await session.send_chunk(piece(0, half))
        # Two turns: more of the text than the first has been taken in.
        early = await read_codes(session, 20)
        assert await speak(talker, other, [other.text.encode()]) == RECORDED[other.name]["codes"]
        await session.send_chunk(piece(1, case.text.encode()[len(half) :], last=True))
        session.finish()
        late = [response async for response in session]
    assert codes_in([*early, *late]) == RECORDED[case.name]["codes"]


async def test_cancelled_text_frees_its_slot(talker: AsyncStageClient) -> None:
    case = NAMED["instruct-long"]
    for _ in range(SLOTS + 1):
        async with talker.session({VOICE: (), CODES: ()}) as session:
            await session.open_segment(segment_of(case))
            await session.send_chunk(piece(0, case.text.encode()[:40]))
            early = await read_codes(session, 3)
            await session.cancel_segment()
            session.finish()
            late = [response async for response in session]
        assert late[-1].report.finish_reason == chunk_pb2.FINISH_REASON_CANCELLED
        codes = codes_in([*early, *late])
        assert codes == RECORDED[case.name]["codes"][: len(codes)]
    assert await speak(talker, case, [case.text.encode()]) == RECORDED[case.name]["codes"]


async def test_lost_session_is_made_again_in_mid_text(talker: AsyncStageClient) -> None:
    case = NAMED["zero-shot-long"]
    cut = by_size(case.text, 7)
    half = len(cut) // 2
    async with talker.session({VOICE: (), CODES: ()}) as session:
        await session.open_segment(segment_of(case))
        for sequence, data in enumerate(cut[:half]):
            await session.send_chunk(piece(sequence, data))
        before = codes_in(await read_codes(session, 5))
    again = await speak(talker, case, [b"".join(cut[:half]), *cut[half:]])
    assert again == RECORDED[case.name]["codes"]
    assert again[: len(before)] == before


async def test_text_that_never_comes_ends_the_session(
    stages: Running, talker: AsyncStageClient
) -> None:
    """By the segment's own deadline, or by the stall clock, which names the edge."""
    case = NAMED["instruct-long"]
    begun = piece(0, case.text.encode()[:20])
    segment = segment_of(case)
    segment.deadline_s = 0.5
    async with talker.session({VOICE: (), CODES: ()}) as session:
        await session.open_segment(segment)
        await session.send_chunk(begun)
        with pytest.raises(DeadlineExceeded, match="deadline of the segment has passed"):
            async for _ in session:
                pass
    begun.session_id = "stalled"
    opening = session_pb2.SessionOpen(
        session_id="stalled",
        routes=[session_pb2.Route(edge=CODES, destinations=[TO_CLIENT])],
        limits=session_pb2.SessionLimits(stall_timeout_s=0.5),
        first_segment=segment_of(case),
        first_input=[begun],
    )
    opening.routes.add(edge=VOICE, destinations=[TO_CLIENT])
    async with grpc.aio.insecure_channel(stages.processes[TALKER].address) as channel:
        call = stage_pb2_grpc.StageServiceStub(channel).RunSession()
        await call.write(session_pb2.SessionRequest(open=opening))
        told = [response async for response in call]
    error = told[-1].error
    assert error.code == session_pb2.ERROR_CODE_DEADLINE_EXCEEDED
    assert error.edge == INPUT
    assert codes_in(told)


@pytest.mark.parametrize("data", [b" ", b"\xff"])
async def test_what_cannot_be_spoken_is_refused_by_its_field(
    data: bytes, talker: AsyncStageClient
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await speak(talker, NAMED["instruct-letter"], [data])
    assert refused.value.field == f"{INPUT}.{PIECE}"


async def test_the_edge_says_that_it_takes_pieces(talker: AsyncStageClient) -> None:
    described = await talker.describe()
    (edge,) = (each for each in described.inputs if each.name == INPUT)
    assert PIECE in [tensor.name for tensor in edge.tensors]


async def test_documented_client_hears_before_the_text_ends(stages: Running) -> None:
    """The page's own code: audio leaves code2wav while the text is still held back."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    made |= {each: stages.processes[each.lower()].address for each in ("TALKER", "CODE2WAV")}
    assert {made[each] for each in ("TALKER", "CODE2WAV")} == {
        stages.processes[each].address for each in (TALKER, CODE2WAV)
    }
    speak: Callable[..., Iterator[np.ndarray]] = made["speak"]
    case = NAMED["added-english"]
    heard = threading.Event()

    def pieces() -> Iterator[str]:
        *words, last = case.text.split(" ")
        yield " ".join(words)
        assert heard.wait(120), "nothing was heard before the text ended"
        yield f" {last}"

    def listen() -> int:
        count = 0
        for samples in speak(pieces(), case.voice, RECORDED[case.name]["seed"]):
            heard.set()
            count += len(samples)
        return count

    assert await asyncio.to_thread(listen) == 960 * len(RECORDED[case.name]["codes"])
