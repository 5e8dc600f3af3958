"""A producer that primes its consumer: two stages without models, over real links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import grpc
import numpy as np
import pytest
from msgspec import structs

from antiphon.deployment.stage_config import TransportName
from antiphon.pipelines.graph import Edge
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import LoadedStage
from antiphon.v1 import session_pb2
from antiphon.values.chunk import Tensor
from antiphon.values.segment import SegmentKey
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, GROUPS, SAMPLES_PER_FRAME, FakeEngine
from antiphon_testkit.qwen3_omni.fake_talker import FakeTalker
from antiphon_testkit.stage_harness import LINKS, RunningStage, running_stage
from tests.integration.stage_session import Request, Session, batch, codes_chunk, linked, opening

FRAMES = 40
WINDOWS = {"codes": 8, "audio": 10 * SAMPLES_PER_FRAME}
CODES = PIPELINE.edge("codes")
ErrorCode = session_pb2.ErrorCode


def frames(count: int, value: int) -> Tensor:
    return np.full((count, GROUPS), value, np.uint16)


def audio_of(reference: Sequence[Tensor]) -> list[float]:
    primed = sum(int(each[:, 0].sum(dtype=np.int64)) for each in reference)
    return np.repeat(np.arange(1.0, FRAMES + 1) + primed, SAMPLES_PER_FRAME).tolist()


@dataclass(frozen=True)
class Pair:
    talker: RunningStage
    code2wav: RunningStage
    talking: FakeTalker
    decoding: FakeEngine


@asynccontextmanager
async def pair(
    reference: Sequence[Tensor], transport: TransportName = "grpc", codes: Edge = CODES
) -> AsyncIterator[Pair]:
    talking, decoding = FakeTalker(FRAMES, reference), FakeEngine()
    edges = tuple(codes if edge.name == codes.name else edge for edge in PIPELINE.edges)
    family = replace(PIPELINE, edges=edges)
    links = replace(LINKS, transport=transport, slab_bytes=1 << 24)
    code2wav_stage = running_stage(
        LoadedStage(decoding, FACTS), "code2wav", pipeline=PIPELINE, links=links
    )
    talker_stage = running_stage(
        LoadedStage(talking, FACTS), "talker", pipeline=family, links=links
    )
    async with code2wav_stage as code2wav, talker_stage as talker:
        yield Pair(talker, code2wav, talking, decoding)


class Listener:
    """A client with the session on both stages; code2wav's first, which holds little."""

    def __init__(self, pair: Pair, name: str) -> None:
        self.key = SegmentKey(name, 0)
        self._pair = pair
        self.audio, self.speech = Session(pair.code2wav, name), Session(pair.talker, name)

    async def open(self) -> None:
        address = self._pair.talker.address, self._pair.code2wav.address
        to_stage = session_pb2.Destination(stage=session_pb2.StageTarget(address=address[1]))
        reply = session_pb2.Destination(reply=session_pb2.ReplyTarget())
        for session, edge, target in (
            (self.audio, "audio", reply),
            (self.speech, "codes", to_stage),
        ):
            route = session_pb2.Route(edge=edge, destinations=[target])
            opening = session_pb2.SessionOpen(
                session_id=session.id, routes=[route], windows=WINDOWS
            )
            await session.send(Request(open=opening))
            await session.read("opened")

    async def open_segment(self, segment: int, **delivery: int) -> None:
        turn = session_pb2.SegmentOpen(segment=segment, outputs=["audio"], delivery=delivery)
        for session in (self.audio, self.speech):
            await session.send(Request(segment_open=turn))
            await session.read("segment_opened")

    async def take(self, segment: int) -> list[float]:
        """All audio of a segment; and both stages' reports, which count nothing that primed."""
        samples: list[float] = []
        finished = False
        while not finished:
            chunk = chunk_from_proto((await self.audio.read("chunk")).chunk)
            assert chunk.position == len(samples)
            samples += chunk.tensors["samples"].tolist() if chunk.tensors else []
            finished = chunk.segment_finished
            credit = session_pb2.OutputCredit(
                edge="audio", segment=segment, positions=len(samples) + WINDOWS["audio"]
            )
            await self.audio.send(Request(credit=credit))
        heard = (await self.audio.read("report")).report
        spoken = (await self.speech.read("report")).report
        assert (heard.input_positions, spoken.output_positions) == (FRAMES, FRAMES)
        return samples


@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
async def test_consumer_is_primed_before_the_first_frame_over_each_kind_of_link(
    transport: TransportName,
) -> None:
    # Inline, with the transport, and in several pieces.
    reference = [frames(3, 5), frames(9000, 1), frames(1_200_000, 1)]
    async with pair(reference, transport) as stages:
        listening = Listener(stages, "cloned")
        await listening.open()
        await listening.open_segment(0)
        assert await listening.take(0) == audio_of(reference)
        (link,) = stages.talker.stage.outgoing_links()
        assert link.counts[f"bytes.{transport}"] > (4 << 20)
        assert stages.talker.stage.table.tally.positions == {"codes": FRAMES}


@pytest.mark.parametrize("edges", [("codes",), ("codes", "audio")])
async def test_primed_frames_leave_first_when_delivery_is_whole(edges: tuple[str, ...]) -> None:
    reference = [frames(3, 5), frames(2, 1)]
    async with pair(reference) as stages:
        listening = Listener(stages, "whole")
        await listening.open()
        delivery = dict.fromkeys(edges, session_pb2.DELIVERY_WHOLE)
        await listening.open_segment(0, **delivery)
        assert await listening.take(0) == audio_of(reference)
        # Two that prime, and all frames in one.
        assert stages.talker.stage.table.tally.chunks == {"codes": 3}


async def test_each_segment_of_a_session_is_primed_anew() -> None:
    reference = [frames(3, 5)]
    async with pair(reference) as stages:
        listening = Listener(stages, "twice")
        await listening.open()
        for segment in range(2):
            await listening.open_segment(segment)
            assert await listening.take(segment) == audio_of(reference)


async def test_cancel_between_what_primes_and_the_first_frame_frees_both_stages() -> None:
    async with pair([frames(3, 5)]) as stages:
        stages.decoding.gate.clear()
        try:
            listening = Listener(stages, "cut")
            await listening.open()
            await listening.open_segment(0)
            # Primed and in its first step, which is held up.
            assert await asyncio.to_thread(stages.decoding.in_step.wait, 60)
            assert stages.decoding.segments[listening.key].primed == 15
            for session in (listening.audio, listening.speech):
                session.call.cancel()
            for stage in (stages.talker, stages.code2wav):
                assert await stage.stage.drain(60)
        finally:
            stages.decoding.gate.set()
        assert await asyncio.to_thread(stages.decoding.released.get, timeout=240) == listening.key
        assert not stages.decoding.segments


async def test_an_edge_that_is_not_declared_primed_fails_the_producers_session() -> None:
    async with pair([frames(3, 5)], codes=replace(CODES, primed=False)) as stages:
        listening = Listener(stages, "undeclared")
        await listening.open()
        await listening.open_segment(0)
        error = await listening.speech.error()
        assert (error.code, error.edge) == (ErrorCode.ERROR_CODE_INTERNAL, "codes")
        assert "not declared `primed`" in error.message


@pytest.mark.parametrize("on_link", [True, False])
async def test_consumer_refuses_what_primes_too_late(served: RunningStage, on_link: bool) -> None:
    session = Session(served, "late")
    await session.send(*opening("late"))
    await session.opened()
    chunks = [
        structs.replace(codes_chunk("late", 0, [5, 5]), prime=True),
        codes_chunk("late", 1, [1]),
        structs.replace(codes_chunk("late", 2, [5]), prime=True),
    ]
    async with linked(served) as link:
        for number, chunk in enumerate(chunks):
            if on_link:
                await link.write(batch(chunk))
            else:
                await session.send(Request(chunk=chunk_to_proto(chunk)))
            if number == 1:
                assert (await session.audio()).tensors["samples"].tolist() == [11.0] * 4
        error = await session.error()
    assert (error.code, error.edge) == (ErrorCode.ERROR_CODE_DATA_LOSS, "codes")
    assert "must be the first one" in error.message


async def test_consumer_refuses_what_primes_at_a_position(served: RunningStage) -> None:
    session = Session(served, "placed")
    await session.send(*opening("placed"))
    await session.opened()
    chunk = structs.replace(codes_chunk("placed", 0, [5]), prime=True, position=3)
    await session.send(Request(chunk=chunk_to_proto(chunk)))
    assert (await session.error()).code == ErrorCode.ERROR_CODE_DATA_LOSS


async def test_what_primes_may_come_before_its_session_and_its_segment(
    served: RunningStage,
) -> None:
    prime = structs.replace(codes_chunk("early", 0, [5]), prime=True)
    later = [
        structs.replace(codes_chunk("early", 2, [7], segment=1), prime=True),
        codes_chunk("early", 3, [1], segment=1, end=True),
    ]
    async with linked(served) as link:
        await link.write(batch(prime, codes_chunk("early", 1, [1], end=True), *later))
        session = Session(served, "early")
        await session.send(*opening("early"))
        await session.opened()
        assert (await session.audio()).tensors["samples"].tolist() == [6.0] * 4
        await session.read("report")
        turn = session_pb2.SegmentOpen(segment=1, outputs=["audio"])
        await session.send(Request(segment_open=turn))
        await session.read("segment_opened")
        assert (await session.audio()).tensors["samples"].tolist() == [8.0] * 4
        await session.read("report")
        await session.call.done_writing()
        assert await session.call.read() is grpc.aio.EOF


async def test_an_edge_whose_consumer_cannot_be_primed_refuses_it() -> None:
    async with running_stage(
        LoadedStage(FakeTalker(1), FACTS), "talker", pipeline=PIPELINE
    ) as running:
        session = Session(running, "tokens")
        await session.send(Request(open=session_pb2.SessionOpen(session_id="tokens")))
        await session.read("opened")
        chunk = structs.replace(codes_chunk("tokens", 0, []), edge="tokens", prime=True)
        await session.send(Request(chunk=chunk_to_proto(chunk)))
        error = await session.error()
        assert (error.code, error.edge) == (ErrorCode.ERROR_CODE_INVALID_ARGUMENT, "tokens")
        assert error.field == "prime"
