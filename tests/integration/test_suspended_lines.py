"""The call of a standing stream breaks; its sessions are suspended and continue on another call."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, Unavailable
from antiphon.runtime.engine import LoadedStage
from antiphon.runtime.server import line_streams
from antiphon.runtime.session.facts import ChunkArrived, Fact
from antiphon.transport import confirmation_clock, numbered_stream
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_gateway.fleet.discovery.replica_endpoint import Endpoint
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.sessions import standing_stream
from antiphon_gateway.sessions.stage_stream import StageStream
from antiphon_gateway.sessions.standing_stream import StandingStreams
from antiphon_testkit.cut_wire import CutWire
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, SAMPLES_PER_FRAME, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.stage_harness import LIMITS, LINKS, RunningStage
from tests.integration.stage_session import codes_chunk, opening

ErrorCode = session_pb2.ErrorCode

WINDOW_S = 120.0
LONG_S = 120.0


@dataclass
class Gateway:
    """The part of a gateway that opens lines to one stage, through a wire that can be cut."""

    running: RunningStage
    wire: CutWire
    replica: Replica
    streams: StandingStreams
    outcomes: Counter[str]
    """Of the suspensions at the gateway."""
    _names: itertools.count[int] = field(default_factory=itertools.count)

    def open(self, frames: int, *, end: bool = True, last: bool = True) -> Speaking:
        """A session with so many frames. Without their end, it waits for more. If another segment
        may follow, it has a stream of its own.
        """
        name = f"s{next(self._names)}"
        begin = opening(name)[0].open
        begin.first_segment.CopyFrom(session_pb2.SegmentOpen(outputs=["audio"], last=last))
        codes = codes_chunk(name, 0, list(range(frames)), end=end)
        begin.first_input.append(chunk_to_proto(codes))
        return Speaking(self.streams.open_line(self.replica, begin))


class Speaking:
    """What a session has received."""

    def __init__(self, line: StageStream) -> None:
        self.line = line
        self.samples: list[float] = []
        self._responses = line.responses()

    async def next(self) -> session_pb2.SessionResponse:
        return await anext(self._responses)

    async def rest(self) -> list[float]:
        async for response in self._responses:
            if response.HasField("chunk") and (got := chunk_from_proto(response.chunk).tensors):
                self.samples += got["samples"].tolist()
        return self.samples

    async def failure(self) -> AntiphonError:
        with pytest.raises(AntiphonError) as failed:
            await self.rest()
        return failed.value


@asynccontextmanager
async def connected(
    engine: FakeEngine, window_s: float = WINDOW_S, **settings: Any
) -> AsyncIterator[Gateway]:
    links = replace(LINKS, resume_window_s=window_s)
    limits = replace(LIMITS, slots=8, stall_timeout_s=600.0)
    loaded = LoadedStage(engine, FACTS)
    async with (
        asyncio.timeout(LONG_S),
        running_stage(loaded, "code2wav", links=links, limits=limits, **settings) as running,
    ):
        wire = CutWire(running.address)
        await wire.open()
        endpoint = Endpoint("code2wav", wire.address, wire.address)
        replica = Replica(endpoint, GatewayConfig(), lambda _: None)
        replica.rise(await stage_stub(running.channel).Describe(stage_pb2.DescribeRequest()))
        outcomes: Counter[str] = Counter()

        def count(role: str, outcome: str) -> None:
            outcomes[outcome] += 1

        streams = StandingStreams(count)
        try:
            yield Gateway(running, wire, replica, streams, outcomes)
        finally:
            engine.gate.set()
            await streams.close()
            await replica.close()
            await wire.close()


def expected(frames: int) -> list[float]:
    return [float(each) for each in range(frames) for _ in range(SAMPLES_PER_FRAME)]


async def test_answers_continue_when_the_connection_is_cut(engine: FakeEngine) -> None:
    async with connected(engine) as gateway:
        engine.gate.clear()
        lines = [gateway.open(40 + number) for number in range(3)]
        for each in lines:
            assert (await each.next()).HasField("opened")
        reading = [asyncio.create_task(each.rest()) for each in lines]
        for _ in range(3):
            gateway.wire.cut()
            # Another line is opened while the stream is suspended.
            lines.append(gateway.open(7))
            assert (await lines[-1].next()).HasField("opened")
        engine.gate.set()
        reading += [asyncio.create_task(each.rest()) for each in lines[3:]]
        heard = await asyncio.gather(*reading)
        assert heard == [expected(count) for count in (40, 41, 42, 7, 7, 7)]
        assert await gateway.running.stage.drain(60)
        assert gateway.outcomes["resumed"] >= 1
        assert gateway.outcomes["lost"] == 0
        assert gateway.running.stage.suspensions["ended"] == 0


async def test_sessions_are_lost_when_the_stage_has_restarted(engine: FakeEngine) -> None:
    async with connected(engine) as gateway, connected(FakeEngine()) as other:
        engine.gate.clear()
        lost = gateway.open(3)
        assert (await lost.next()).HasField("opened")
        gateway.wire.redirect(other.running.address)
        gateway.wire.cut()
        failure = await lost.failure()
        assert isinstance(failure, Unavailable)
        assert failure.stage == "code2wav"
        assert await gateway.open(5).rest() == expected(5)


async def test_sessions_are_lost_at_once_when_the_process_listens_no_more(
    engine: FakeEngine,
) -> None:
    async with connected(engine) as gateway:
        engine.gate.clear()
        lost = gateway.open(3)
        assert (await lost.next()).HasField("opened")
        await gateway.wire.close()
        assert isinstance(await lost.failure(), Unavailable)


async def test_sessions_end_at_both_ends_when_the_window_ends(engine: FakeEngine) -> None:
    async with connected(engine, window_s=0.3) as gateway:
        lost = gateway.open(3, end=False)
        assert (await lost.next()).HasField("opened")
        # The wire accepts connections and closes them.
        gateway.wire.redirect("127.0.0.1:1")
        gateway.wire.cut()
        assert isinstance(await lost.failure(), Unavailable)
        assert await gateway.running.stage.drain(60)
        assert gateway.outcomes == {"lost": 1}
        assert gateway.running.stage.suspensions == {"resumed": 0, "ended": 1}


async def test_line_that_is_cancelled_while_it_is_suspended_is_cancelled_at_the_stage(
    engine: FakeEngine,
) -> None:
    async with connected(engine) as gateway:
        engine.gate.clear()
        gone, stays = gateway.open(3), gateway.open(4)
        for each in (gone, stays):
            assert (await each.next()).HasField("opened")
        gateway.wire.cut()
        gone.line.cancel()
        engine.gate.set()
        assert await stays.rest() == expected(4)
        assert await gateway.running.stage.drain(60)


async def test_stream_moves_when_its_replica_has_another_channel(engine: FakeEngine) -> None:
    async with connected(engine) as gateway:
        engine.gate.clear()
        before = gateway.open(3)
        assert (await before.next()).HasField("opened")
        gateway.replica.open_anew()
        after = gateway.open(4)
        assert (await after.next()).HasField("opened")
        engine.gate.set()
        assert await before.rest() == expected(3)
        assert await after.rest() == expected(4)


async def test_sessions_continue_when_the_connection_swallows_everything(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation_clock, "TICK_S", 0.05)
    monkeypatch.setattr(standing_stream, "RESUME_WITHIN_S", WINDOW_S)
    async with connected(engine) as gateway:
        engine.gate.clear()
        lines = [gateway.open(3), gateway.open(4), gateway.open(5, last=False)]
        for each in lines:
            assert (await each.next()).HasField("opened")
        channel = gateway.replica.channel
        gateway.wire.swallow()
        engine.gate.set()
        assert [await each.rest() for each in lines[:2]] == [expected(3), expected(4)]
        lines[2].line.half_close()
        assert await lines[2].rest() == expected(5)
        assert gateway.replica.channel is not channel
        assert await gateway.open(6).rest() == expected(6)
        assert await gateway.running.stage.drain(60)


async def test_damaged_messages_break_the_call_and_not_its_sessions(engine: FakeEngine) -> None:
    async with connected(engine) as gateway:
        assert await gateway.open(1).rest() == expected(1)
        # In a request, and then in a response.
        gateway.wire.misspell(b"audio")
        engine.gate.clear()
        line = gateway.open(20)
        assert (await line.next()).HasField("opened")
        assert gateway.wire.damaged == 1
        gateway.wire.misspell(b"audio")
        engine.gate.set()
        assert await line.rest() == expected(20)
        assert gateway.wire.damaged == 2


async def test_sessions_of_a_gateway_that_leaves_are_freed_at_once(engine: FakeEngine) -> None:
    async with connected(engine) as gateway:
        left = gateway.open(3, end=False)
        assert (await left.next()).HasField("opened")
        await gateway.streams.close()
        assert await gateway.running.stage.drain(60)
        assert isinstance(await left.failure(), Unavailable)


async def test_answers_arrive_when_an_end_may_keep_one_message(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered_stream, "KEPT_MESSAGES", 1)
    monkeypatch.setattr(numbered_stream, "CONFIRMED_MESSAGES", 1)
    async with connected(engine) as gateway:
        first = gateway.open(3)
        assert (await first.next()).HasField("opened")
        lines = [gateway.open(count) for count in (4, 5)]
        assert await first.rest() == expected(3)
        assert [await each.rest() for each in lines] == [expected(4), expected(5)]


async def test_suspended_sessions_end_when_the_stage_closes(engine: FakeEngine) -> None:
    async with connected(engine) as gateway:
        engine.gate.clear()
        lost = gateway.open(3)
        assert (await lost.next()).HasField("opened")
        gateway.wire.redirect("127.0.0.1:1")
        gateway.wire.cut()
        engine.gate.set()
        await gateway.running.stage.close()
        assert gateway.running.stage.table.session_count == 0
        gateway.wire.redirect(gateway.running.address)
        assert isinstance(await lost.failure(), Unavailable)


class Call:
    """A call of a stream with one line, by hand."""

    def __init__(self, gateway: Gateway, stream_id: str) -> None:
        self._hello = stage_pb2.LineHello(stream_id=stream_id)
        self.rpc: Any = stage_stub(gateway.running.channel).RunSessions()

    async def hello(self, received: int | None = None) -> None:
        self._hello.resume = received is not None
        await self.rpc.write(stage_pb2.LineRequest(hello=self._hello, received=received or 0))

    async def begin(self) -> None:
        """Begin the stream with a session, and wait until it is registered."""
        await self.hello()
        request = opening(self._hello.stream_id)[0]
        await self.rpc.write(stage_pb2.LineRequest(line=1, request=request))
        while not (await self.rpc.read()).messages:
            pass


async def test_call_ends_when_another_one_continues_its_stream(engine: FakeEngine) -> None:
    async with connected(engine) as gateway:
        first, second = (Call(gateway, "same") for _ in range(2))
        await first.begin()
        await second.hello(received=1)
        assert await first.rpc.read() is grpc.aio.EOF
        while not (await second.rpc.read()).resumed:
            pass
        await second.rpc.write(stage_pb2.LineRequest(goodbye=stage_pb2.LineGoodbye()))
        assert await second.rpc.read() is grpc.aio.EOF
        assert gateway.running.stage.table.session_count == 0


async def test_oldest_suspended_stream_ends_when_they_keep_too_many_bytes(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_streams, "MAX_SUSPENDED_BYTES", 1)
    async with connected(engine) as gateway:
        for name in "ab":
            call = Call(gateway, name)
            await call.begin()
            suspended = SuspendedStreams()
            call.rpc.cancel()
            await suspended.seen.wait()
        assert gateway.running.stage.table.session_count == 1
        again = {name: Call(gateway, name) for name in "ab"}
        for call in again.values():
            await call.hello(received=1)
        assert (await again["a"].rpc.read()).resume_window_s == WINDOW_S
        with pytest.raises(grpc.aio.AioRpcError, match="was restarted"):
            await again["a"].rpc.read()
        while not (await again["b"].rpc.read()).resumed:
            pass
        await again["b"].rpc.write(stage_pb2.LineRequest(goodbye=stage_pb2.LineGoodbye()))


class SuspendedStreams(logging.Handler):
    """Waits until the stage has suspended a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = asyncio.Event()
        logging.getLogger(line_streams.__name__).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "suspending them" in record.getMessage():
            self.seen.set()


async def test_line_with_more_than_may_wait_fails_alone(engine: FakeEngine) -> None:
    """By hand: output of two steps follows after the stream was suspended, more than may wait."""
    codes = [codes_chunk("large", at, [at] * 200, end=at == 1) for at in range(2)]
    arrived: asyncio.Queue[Fact] = asyncio.Queue()

    def record(fact: Fact, *_: object) -> None:
        if isinstance(fact, ChunkArrived):
            arrived.put_nowait(fact)

    async with connected(engine, outbox_bytes=4096, record=record) as gateway:
        stub = stage_stub(gateway.running.channel)
        rpc = stub.RunSessions()
        hello = stage_pb2.LineHello(stream_id="mine")
        await rpc.write(stage_pb2.LineRequest(hello=hello))
        for number, name in ((1, "large"), (2, "small")):
            for request in opening(name):
                await rpc.write(stage_pb2.LineRequest(line=number, request=request))
        received = 0
        opened = 0
        while opened < 4:
            response = await rpc.read()
            opened += len(response.messages)
            received += bool(response.messages)
        engine.gate.clear()
        for chunk in codes:
            request = session_pb2.SessionRequest(chunk=chunk_to_proto(chunk))
            await rpc.write(stage_pb2.LineRequest(line=1, request=request))
            await arrived.get()
            await asyncio.to_thread(engine.in_step.wait, 60)
        suspended = SuspendedStreams()
        rpc.cancel()
        await suspended.seen.wait()
        engine.gate.set()
        await asyncio.to_thread(engine.released.get, timeout=60)
        rpc = stub.RunSessions()
        hello.resume = True
        await rpc.write(stage_pb2.LineRequest(hello=hello, received=received))
        end = chunk_to_proto(codes_chunk("small", 0, [5], end=True))
        request = session_pb2.SessionRequest(chunk=end)
        await rpc.write(stage_pb2.LineRequest(line=2, request=request))
        await rpc.write(stage_pb2.LineRequest(line=2, done=stage_pb2.LineDone()))
        messages: dict[int, list[stage_pb2.LineMessage]] = {1: [], 2: []}
        while not (messages[2] and messages[2][-1].HasField("end")):
            for message in (await rpc.read()).messages:
                messages[message.line].append(message)
        *_, failed, ended = messages[1]
        assert ended.HasField("end")
        assert failed.response.error.code == ErrorCode.ERROR_CODE_RESOURCE_EXHAUSTED
        assert "outbox_bytes" in failed.response.error.message
        assert not any(each.response.HasField("error") for each in messages[2])
        await rpc.write(stage_pb2.LineRequest(goodbye=stage_pb2.LineGoodbye()))


async def test_stage_refuses_a_stream_that_it_does_not_have(engine: FakeEngine) -> None:
    async with connected(engine) as gateway:
        rpc = stage_stub(gateway.running.channel).RunSessions()
        assert (await rpc.read()).resume_window_s == WINDOW_S
        hello = stage_pb2.LineHello(stream_id="unknown", resume=True)
        await rpc.write(stage_pb2.LineRequest(hello=hello))
        with pytest.raises(grpc.aio.AioRpcError, match="was restarted"):
            await rpc.read()
        assert await rpc.code() is grpc.StatusCode.NOT_FOUND
