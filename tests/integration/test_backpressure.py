"""Credit over real gRPC: a talker and a code2wav without models, and clients that pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import pytest

from antiphon.runtime.engine import LoadedStage
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.values.segment import SegmentKey
from antiphon.wire.chunks import chunk_from_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, SAMPLES_PER_FRAME, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.qwen3_omni.fake_talker import FakeTalker
from antiphon_testkit.stage_harness import RunningStage
from tests.integration.stage_session import Request, Session

pytestmark = pytest.mark.usefixtures("each_carrier")

FRAMES = 500
WINDOWS = {"codes": 8, "audio": 10 * SAMPLES_PER_FRAME}
POLICY = session_pb2.ChunkPolicy(first=1, ramp=[2, 4], steady=5)
# Frames that the talker may be ahead of what the client has taken: the audio window, a
# step of code2wav and what lies in front of it, each a codes window and a chunk.
BOUND = 10 + 2 * (8 + 5)
EXPECTED = np.repeat(np.arange(1.0, FRAMES + 1), SAMPLES_PER_FRAME).tolist()


@dataclass(frozen=True)
class Pair:
    """A talker that sends to a code2wav."""

    talker: RunningStage
    code2wav: RunningStage
    talking: FakeTalker
    decoding: FakeEngine


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    talking, decoding = FakeTalker(FRAMES), FakeEngine()
    async with (
        running_stage(LoadedStage(decoding, FACTS), "code2wav") as code2wav,
        running_stage(LoadedStage(talking, FACTS), "talker") as talker,
    ):
        yield Pair(talker, code2wav, talking, decoding)


class Listener:
    """A client that has the session on both stages and takes audio when it is told to."""

    def __init__(self, pair: Pair, name: str, windows: dict[str, int]) -> None:
        self.key = SegmentKey(name, 0)
        self.samples: list[float] = []
        self.speech, self.audio = Session(pair.talker, name), Session(pair.code2wav, name)
        self._windows = windows
        self._pair = pair

    async def open(self, policy: session_pb2.ChunkPolicy = POLICY, **delivery: int) -> None:
        to_stage = session_pb2.StageTarget(address=self._pair.code2wav.address)
        targets = (
            (self.speech, "codes", session_pb2.Destination(stage=to_stage)),
            (self.audio, "audio", session_pb2.Destination(reply=session_pb2.ReplyTarget())),
        )
        for session, edge, target in targets:
            route = session_pb2.Route(edge=edge, destinations=[target])
            opening = session_pb2.SessionOpen(
                session_id=session.id, routes=[route], windows=self._windows
            )
            turn = session_pb2.SegmentOpen(
                outputs=["audio"], chunk_policy=policy, delivery=delivery
            )
            await session.send(Request(open=opening), Request(segment_open=turn))
            await session.opened()

    async def take(self) -> Chunk:
        """Take a chunk and grant as much anew."""
        chunk = chunk_from_proto((await self.audio.read("chunk")).chunk)
        self.samples += chunk.tensors["samples"].tolist() if chunk.tensors else []
        if "audio" in self._windows:
            positions = len(self.samples) + self._windows["audio"]
            credit = session_pb2.OutputCredit(edge="audio", positions=positions)
            await self.audio.send(Request(credit=credit))
        return chunk

    async def take_all(self) -> None:
        while not (await self.take()).segment_finished:
            pass
        for session in (self.audio, self.speech):
            await session.read("report")


async def opened(pair: Pair, name: str, windows: dict[str, int] = WINDOWS) -> Listener:
    listening = Listener(pair, name, windows)
    await listening.open()
    return listening


async def described(stage: RunningStage) -> stage_pb2.DescribeResponse:
    return await stage_stub(stage.channel).Describe(stage_pb2.DescribeRequest())


async def until_held(pair: Pair, segments: int = 1) -> None:
    """As many segments are held on both stages."""
    for stage in (pair.talker, pair.code2wav):
        while (await described(stage)).held_segments != segments:
            pass


async def test_paused_client_stops_the_engines_and_others_go_on(pair: Pair) -> None:
    slow, *quick = [await opened(pair, name) for name in ("slow", "a", "b", "c")]
    await asyncio.gather(*(each.take_all() for each in quick))
    await until_held(pair)
    made = pair.talking.made[slow.key]
    assert 0 < made <= BOUND < FRAMES
    later = await opened(pair, "later")
    await later.take_all()
    assert pair.talking.made[slow.key] == made
    for each in (*quick, later):
        assert each.samples == EXPECTED
    await slow.take_all()
    assert slow.samples == EXPECTED


async def test_slow_client_is_never_far_behind_the_talker(pair: Pair) -> None:
    slow = await opened(pair, "slow")
    while not (await slow.take()).segment_finished:
        taken = len(slow.samples) // SAMPLES_PER_FRAME
        assert pair.talking.made[slow.key] - taken <= BOUND
    assert slow.samples == EXPECTED


async def test_client_without_windows_stops_nothing(pair: Pair) -> None:
    free = await opened(pair, "free", {})
    assert (await free.speech.read("report")).report.output_positions == FRAMES > BOUND
    while not (await free.take()).segment_finished:
        pass
    assert free.samples == EXPECTED


@pytest.mark.parametrize("whole", [(), ("codes",), ("audio",), ("codes", "audio")])
async def test_chunks_larger_than_the_window_and_whole_delivery_go_through(
    pair: Pair, whole: tuple[str, ...]
) -> None:
    listening = Listener(pair, "large", {"codes": 8, "audio": 1})
    delivery = dict.fromkeys(whole, session_pb2.Delivery.DELIVERY_WHOLE)
    await listening.open(session_pb2.ChunkPolicy(first=64, steady=64), **delivery)
    await listening.take_all()
    assert listening.samples == EXPECTED


async def test_cancel_while_held_frees_both_stages(pair: Pair) -> None:
    slow = await opened(pair, "slow")
    await until_held(pair)
    slow.audio.call.cancel()
    slow.speech.call.cancel()
    for stage in (pair.talker, pair.code2wav):
        while (await described(stage)).open_sessions:
            pass
        told = await described(stage)
        assert (told.open_segments, told.held_segments) == (0, 0)
    again = await opened(pair, "again")
    await again.take_all()
    assert again.samples == EXPECTED
    for engine in (pair.talking, pair.decoding):
        assert slow.key not in engine.segments


async def test_describe_counts_what_was_made(pair: Pair) -> None:
    listening = await opened(pair, "counted")
    await listening.take_all()
    assert (await described(pair.talker)).output_positions == {"codes": FRAMES}
    assert (await described(pair.code2wav)).output_positions == {"audio": len(EXPECTED)}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(credit=session_pb2.OutputCredit(edge="codes", positions=9)), "credit.edge"),
        (
            Request(open=session_pb2.SessionOpen(session_id="x", windows={"codes": 0})),
            "windows.codes",
        ),
    ],
)
async def test_session_fails_when_credit_makes_no_sense(
    pair: Pair, request_: Request, field: str
) -> None:
    session = Session(pair.code2wav, "x")
    if not request_.HasField("open"):
        await session.send(Request(open=session_pb2.SessionOpen(session_id="x")))
        await session.read("opened")
    await session.send(request_)
    error = await session.error()
    assert (error.code, error.field) == (session_pb2.ERROR_CODE_INVALID_ARGUMENT, field)
