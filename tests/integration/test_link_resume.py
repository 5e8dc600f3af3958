"""A stage whose links break: its sessions are suspended, and go on or fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import numpy as np
import pytest

from antiphon.runtime.engine import LoadedStage
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.transport.payload.registry import attach_best
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.cut_wire import CutWire
from antiphon_testkit.link_rig import LinkConsumer, serving
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import LINKS, RunningStage
from tests.integration.stage_session import Request, Session, codes_chunk, opening

ErrorCode = session_pb2.ErrorCode


@pytest.fixture(params=[30.0])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[RunningStage]:
    links = replace(LINKS, resume_window_s=request.param)
    async with running_stage(LoadedStage(FakeEngine(), FACTS), "code2wav", links=links) as running:
        yield running


@asynccontextmanager
async def upstream(
    served: RunningStage, *, boot_id: str = "talker-1"
) -> AsyncIterator[tuple[grpc.aio.StreamStreamCall[object, object], stage_pb2.LinkAccept]]:
    """A link from a talker, on a connection of its own that breaks at the end."""
    async with grpc.aio.insecure_channel(served.address, options=CHANNEL_OPTIONS) as channel:
        call = stage_stub(channel).Link()
        hello = stage_pb2.LinkHello(
            link_id=f"link of {boot_id}", boot_id=boot_id, address="talker:1", host_id="h"
        )
        await call.write(stage_pb2.LinkRequest(hello=hello))
        first = await call.read()
        assert isinstance(first, stage_pb2.LinkResponse)
        yield call, first.accept


def numbered(first: int, *protos: chunk_pb2.Chunk) -> stage_pb2.LinkRequest:
    return stage_pb2.LinkRequest(batch=stage_pb2.ChunkBatch(first=first, chunks=protos))


async def speaking(served: RunningStage, session_id: str) -> Session:
    session = Session(served, session_id)
    await session.send(*opening(session_id))
    await session.opened()
    return session


async def test_session_goes_on_exactly_once_when_its_link_comes_back(served: RunningStage) -> None:
    session = await speaking(served, "cut")
    chunks = [codes_chunk("cut", n, [n + 1], end=n == 3) for n in range(4)]
    protos = [chunk_to_proto(chunk) for chunk in chunks]
    async with upstream(served) as (link, accept):
        assert not accept.resumed
        await link.write(numbered(0, *protos[:2]))
        heard = (await session.audio()).tensors["samples"].tolist()
        while len(heard) < 8:
            heard += (await session.audio()).tensors["samples"].tolist()
    suspended = (await session.read("suspended")).suspended
    assert (suspended.edge, suspended.address) == ("codes", "talker:1")
    assert suspended.resume_window_s == 30.0
    async with upstream(served) as (link, accept):
        assert accept.resumed
        assert accept.chunks == 2
        # The second chunk comes twice: its number says that it has come before.
        await link.write(numbered(1, *protos[1:]))
        while True:
            audio = await session.audio()
            heard += audio.tensors["samples"].tolist() if audio.tensors else []
            if audio.segment_finished:
                break
    assert heard == np.repeat([1.0, 2.0, 3.0, 4.0], 4).tolist()


async def test_session_fails_at_once_when_its_producer_has_restarted(served: RunningStage) -> None:
    session = await speaking(served, "gone")
    async with upstream(served) as (link, _):
        await link.write(numbered(0, chunk_to_proto(codes_chunk("gone", 0, [1]))))
        await session.audio()
    await session.read("suspended")
    async with upstream(served, boot_id="talker-2") as (link, accept):
        assert not accept.resumed
        error = await session.error()
    assert (error.code, error.stage) == (ErrorCode.ERROR_CODE_UNAVAILABLE, "talker")


@pytest.mark.parametrize("served", [0.2], indirect=True)
async def test_session_fails_when_the_window_ends(served: RunningStage) -> None:
    session = await speaking(served, "late")
    async with upstream(served) as (link, _):
        await link.write(numbered(0, chunk_to_proto(codes_chunk("late", 0, [1]))))
        await session.audio()
    await session.read("suspended")
    error = await session.error()
    assert (error.code, error.stage) == (ErrorCode.ERROR_CODE_UNAVAILABLE, "talker")
    assert error.edge == "codes"


def answering() -> list[str]:
    """The tasks that answer on links."""
    names = (task.get_name() for task in asyncio.all_tasks())
    return [name for name in names if name.startswith("answers on")]


async def test_session_fails_at_once_when_its_producer_says_goodbye(served: RunningStage) -> None:
    session = await speaking(served, "left")
    async with upstream(served) as (link, _):
        await link.write(numbered(0, chunk_to_proto(codes_chunk("left", 0, [1]))))
        await session.audio()
        assert answering()
        await link.write(stage_pb2.LinkRequest(goodbye=stage_pb2.LinkGoodbye()))
        assert (await session.error()).code == ErrorCode.ERROR_CODE_UNAVAILABLE
        assert not answering()


async def test_producer_sends_what_was_lost_again_and_says_that_it_is_suspended(
    served: RunningStage,
) -> None:
    consumer = LinkConsumer(replace(LINKS, resume_window_s=30.0), attach_best, boot_id="next")
    async with serving(consumer) as address:
        wire = CutWire(address)
        await wire.open()
        target = session_pb2.Destination(stage=session_pb2.StageTarget(address=wire.address))
        route = session_pb2.Route(edge="audio", destinations=[target])
        session = Session(served, "down")
        open_ = session_pb2.SessionOpen(session_id="down", routes=[route])
        turn = session_pb2.SegmentOpen(outputs=["audio"])
        await session.send(Request(open=open_), Request(segment_open=turn))
        await session.opened()
        for sequence in range(10):
            chunk = codes_chunk("down", sequence, [sequence + 1], end=sequence == 9)
            await session.send(Request(chunk=chunk_to_proto(chunk)))
            if sequence == 5:
                await consumer.received.wait_count(1)
                wire.cut()
                suspended = (await session.read("suspended")).suspended
                assert (suspended.edge, suspended.address) == ("audio", wire.address)
        assert (await session.read("report")).report.output_positions == 40
        (link,) = served.stage.outgoing_links()
        received = consumer.received
        await received.changed.wait_until(lambda: received.finished)
        sequences = received.sequences["down"]
        assert sequences == list(range(len(sequences)))
        assert link.counts["reconnected"] == 1
        await wire.close()


async def test_describe_tells_of_the_links(served: RunningStage) -> None:
    async with upstream(served) as (link, accept):
        told = await stage_stub(served.channel).Describe(stage_pb2.DescribeRequest())
        (state,) = told.links
        assert (state.peer_address, state.transport, state.connected) == ("talker:1", "grpc", True)
        assert accept.transport == "grpc"


def routed(session_id: str, address: str) -> list[Request]:
    """Open a session whose audio goes to another stage."""
    target = session_pb2.Destination(stage=session_pb2.StageTarget(address=address))
    route = session_pb2.Route(edge="audio", destinations=[target])
    open_ = session_pb2.SessionOpen(session_id=session_id, routes=[route])
    turn = session_pb2.SegmentOpen(outputs=["audio"])
    return [Request(open=open_), Request(segment_open=turn)]


@pytest.mark.parametrize("served", [3.0], indirect=True)
@pytest.mark.parametrize("half_closed", [False, True])
async def test_session_is_told_when_its_last_chunks_waited_on_a_link_that_is_given_up(
    served: RunningStage, half_closed: bool
) -> None:
    consumer = LinkConsumer(replace(LINKS, resume_window_s=30.0), attach_best, boot_id="next")
    async with serving(consumer) as address:
        wire = CutWire(address)
        await wire.open()
        # So that the link is up before the session has sent anything.
        first, last = Session(served, "first"), Session(served, "last")
        await first.send(*routed("first", wire.address))
        await first.opened()
        await first.send(Request(chunk=chunk_to_proto(codes_chunk("first", 0, [1]))))
        await consumer.received.wait_count(1)
        await wire.close()
        await first.read("suspended")
        await last.send(*routed("last", wire.address))
        await last.opened()
        await last.send(Request(chunk=chunk_to_proto(codes_chunk("last", 0, [1], end=True))))
        if half_closed:
            await last.call.done_writing()
        await last.read("report")
        error = await last.error()
        assert error.code == ErrorCode.ERROR_CODE_UNAVAILABLE
        assert "was lost" in error.message
        assert not consumer.received.sequences["last"]
        assert served.stage.table.session_count == 0


async def test_session_ends_well_when_its_last_chunks_are_acknowledged(
    served: RunningStage,
) -> None:
    consumer = LinkConsumer(replace(LINKS, resume_window_s=30.0), attach_best, boot_id="next")
    async with serving(consumer) as address:
        session = Session(served, "well")
        await session.send(*routed("well", address))
        await session.opened()
        await session.send(Request(chunk=chunk_to_proto(codes_chunk("well", 0, [1], end=True))))
        await session.call.done_writing()
        await session.read("report")
        assert await session.call.read() is grpc.aio.EOF
        assert consumer.received.finished == 1
        assert await served.stage.drain(30.0)


async def test_session_that_waits_for_acknowledgement_is_forgotten_when_its_client_goes(
    served: RunningStage,
) -> None:
    consumer = LinkConsumer(replace(LINKS, resume_window_s=30.0), attach_best, boot_id="next")
    async with serving(consumer) as address:
        wire = CutWire(address)
        await wire.open()
        wire.flowing.clear()
        session = Session(served, "gone")
        await session.send(*routed("gone", wire.address))
        await session.opened()
        await session.send(Request(chunk=chunk_to_proto(codes_chunk("gone", 0, [1], end=True))))
        await session.call.done_writing()
        await session.read("report")
        session.call.cancel()
        assert await served.stage.drain(30.0)
        await wire.close()
