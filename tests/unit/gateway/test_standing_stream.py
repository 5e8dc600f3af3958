"""Lines of a standing stream at the gateway: which sessions take one, their window, their ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from antiphon.errors import Internal, Unavailable
from antiphon.transport import confirmation_clock
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.wire.status import ERROR_METADATA_KEY
from antiphon_gateway.sessions import standing_lines, standing_stream
from antiphon_gateway.sessions.stage_stream import StageStream
from antiphon_gateway.sessions.standing_stream import MOST_FRUITLESS, SMALL_BYTES, StandingStreams

Request = stage_pb2.LineRequest
END = stage_pb2.LineEnd()


class Replica:
    """A stage whose standing streams are at hand: what was sent, and what it sends."""

    def __init__(
        self,
        *,
        runs_lines: bool = True,
        window_bytes: int = 1 << 20,
        batch_requests: int = 0,
        resume_window_s: float = 0.0,
    ) -> None:
        self.role, self.address, self.channel = "talker", "nowhere", object()
        self.outputs = self.slots = self.own_streams = 0
        self.description = stage_pb2.DescribeResponse(runs_lines=runs_lines)
        self.stub = SimpleNamespace(RunSessions=self._run_sessions, RunSession=self._run_session)
        self.stated = stage_pb2.LineResponse(
            window_bytes=window_bytes,
            batch_requests=batch_requests,
            resume_window_s=resume_window_s,
        )
        self.on_replaced: set[Callable[[], None]] = set()
        self.streams: list[Rpc] = []
        self.called_again = asyncio.Event()
        self._called = asyncio.Event()

    def _run_sessions(self, requests: AsyncIterator[Request]) -> Rpc:
        self.streams.append(Rpc(requests))
        self.streams[-1].state(self.stated)
        self._called.set()
        if len(self.streams) > 1:
            self.called_again.set()
        return self.streams[-1]

    async def called(self, count: int) -> None:
        """Wait for this many calls in total."""
        while len(self.streams) < count:
            self._called.clear()
            await self._called.wait()

    def _run_session(self, requests: object) -> SimpleNamespace:
        self.own_streams += 1
        return SimpleNamespace(cancel=lambda: None)

    def open_anew(self) -> None:
        self.channel = object()
        for told in tuple(self.on_replaced):
            told()

    def segment_began(self) -> None:
        self.slots += 1

    def segment_ended(self) -> None:
        self.slots -= 1

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Rpc:
    """A RunSessions call."""

    def __init__(self, requests: AsyncIterator[Request]) -> None:
        self._requests = requests
        self._responses: asyncio.Queue[stage_pb2.LineResponse | BaseException | None] = (
            asyncio.Queue()
        )
        self.cancelled = False
        self.hello: Request | None = None

    async def sent(self) -> Request:
        """The next request after `hello`."""
        while (request := await anext(self._requests)).HasField("hello"):
            self.hello = request
        return request

    async def opened(self, count: int) -> list[Request]:
        """Sessions that are opened with messages of their own, each with all its input."""
        sent = [await self.sent() for _ in range(2 * count)]
        openings, ends = sent[:count], sent[count:]
        assert all(each.HasField("done") for each in ends)
        assert [each.line for each in openings] == [each.line for each in ends]
        return openings

    def state(self, response: stage_pb2.LineResponse) -> None:
        self._responses.put_nowait(response)

    def send(self, *messages: stage_pb2.LineMessage) -> None:
        self._responses.put_nowait(stage_pb2.LineResponse(messages=messages))

    def end(self, error: BaseException | None = None) -> None:
        self._responses.put_nowait(error)

    def cancel(self) -> None:
        self.cancelled = True
        self.end(asyncio.CancelledError())

    async def __aiter__(self) -> AsyncIterator[stage_pb2.LineResponse]:
        while isinstance(response := await self._responses.get(), stage_pb2.LineResponse):
            yield response
        if response is not None:
            raise response


def opening(name: str = "s", *, last: bool = True, **fields: Any) -> session_pb2.SessionOpen:
    segment = session_pb2.SegmentOpen(last=last, **fields)
    return session_pb2.SessionOpen(session_id=name, first_segment=segment)


def message(line: int, text: str = "") -> stage_pb2.LineMessage:
    chunk = chunk_pb2.Chunk(edge=text)
    return stage_pb2.LineMessage(line=line, response=session_pb2.SessionResponse(chunk=chunk))


def end(line: int) -> stage_pb2.LineMessage:
    return stage_pb2.LineMessage(line=line, end=END)


async def edges(line: StageStream) -> list[str]:
    return [each.chunk.edge async for each in line.responses()]


async def test_sessions_with_one_small_segment_share_a_stream() -> None:
    streams, replica = StandingStreams(), Replica()
    first, second = (streams.open_line(replica, opening(name)) for name in "ab")  # type: ignore[arg-type]
    (rpc,) = replica.streams
    sent = await rpc.opened(2)
    assert [(each.line, each.request.open.session_id) for each in sent] == [(1, "a"), (2, "b")]
    rpc.send(message(2, "x"), message(1, "y"), message(2, "z"))
    rpc.send(end(1), end(2))
    assert await edges(first) == ["y"]
    assert await edges(second) == ["x", "z"]
    assert replica.outputs == 3
    await ended(streams, rpc)


def credit(edge: str) -> session_pb2.SessionRequest:
    return session_pb2.SessionRequest(credit=session_pb2.OutputCredit(edge=edge))


async def stated(line: StageStream, rpc: Rpc) -> None:
    """Wait until the stage has stated its bounds: the first line of a stream is over."""
    await rpc.opened(1)
    rpc.send(end(1))
    assert await edges(line) == []


async def test_what_is_ready_of_all_lines_leaves_in_one_message() -> None:
    streams, replica = StandingStreams(), Replica(batch_requests=64)
    first = streams.open_line(replica, opening("first"))  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await stated(first, rpc)
    lines = {name: streams.open_line(replica, opening(name)) for name in "abc"}  # type: ignore[arg-type]
    lines["a"].send(credit("audio"))
    lines["c"].cancel()
    batch = (await rpc.sent()).batch.requests
    kinds = [(each.line, each.WhichOneof("message")) for each in batch]
    # Line 4 was cancelled before anything of it was sent.
    assert kinds == [(2, "request"), (2, "request"), (2, "done"), (3, "request"), (3, "done")]
    lines["b"].cancel()
    alone = await rpc.sent()
    assert (alone.line, alone.WhichOneof("message")) == (3, "cancel")
    await ended(streams, rpc)


@pytest.mark.parametrize("stated_requests", [3, 1 << 20], ids=["the stage's", "the gateway's"])
async def test_batch_has_as_many_requests_as_both_ends_take(stated_requests: int) -> None:
    streams, replica = StandingStreams(), Replica(batch_requests=stated_requests)
    first = streams.open_line(replica, opening("first"))  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await stated(first, rpc)
    count = standing_lines.BATCH_REQUESTS
    for number in range(count):
        streams.open_line(replica, opening(str(number)))  # type: ignore[arg-type]
    most = min(stated_requests, count)
    sent: list[Request] = []
    while len(sent) < 2 * count:
        message = await rpc.sent()
        sent += message.batch.requests or [message]
        assert len(message.batch.requests) <= most
        if len(sent) == most:
            assert message.batch.requests
    assert sorted(each.line for each in sent if each.HasField("done")) == [*range(2, count + 2)]
    for number in range(2, count + 2):
        of_line = [each.WhichOneof("message") for each in sent if each.line == number]
        assert of_line == ["request", "done"]
    await ended(streams, rpc)


async def test_batch_is_sent_when_it_has_many_bytes() -> None:
    streams, replica = StandingStreams(), Replica(batch_requests=64)
    first = streams.open_line(replica, opening("first"))  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await stated(first, rpc)
    large = "x" * (standing_lines.BATCH_BYTES // 2)
    for _ in range(4):
        streams.open_line(replica, opening(large))  # type: ignore[arg-type]
    lines = [[each.line for each in (await rpc.sent()).batch.requests] for _ in range(2)]
    assert lines == [[2, 2, 3], [4, 4, 5]]
    rest = [await rpc.sent()]
    assert [each.line for each in rest[0].batch.requests] == [3, 5]
    await ended(streams, rpc)


async def ended(streams: StandingStreams, rpc: Rpc) -> None:
    rpc.end()
    await streams.close()


async def test_older_stage_gets_a_call_for_each_session() -> None:
    replica = Replica(runs_lines=False)
    StandingStreams().open_line(replica, opening())  # type: ignore[arg-type]
    assert (replica.own_streams, replica.streams) == (1, [])


@pytest.mark.parametrize(
    "begins",
    [opening(last=False), opening(live=True), opening("x" * SMALL_BYTES)],
    ids=["a conversation", "live input", "a large input"],
)
async def test_other_sessions_are_the_only_line_of_a_stream(
    begins: session_pb2.SessionOpen,
) -> None:
    streams, replica = StandingStreams(), Replica()
    line = streams.open_line(replica, begins)  # type: ignore[arg-type]
    streams.open_line(replica, opening())  # type: ignore[arg-type]
    alone, shared = replica.streams
    assert (await alone.sent()).request.open == begins
    line.half_close()
    assert (await alone.sent()).HasField("done")
    alone.send(message(1, "x"), end(1))
    assert await edges(line) == ["x"]
    assert (await alone.sent()).HasField("goodbye")
    # The gateway sends nothing more, so that an older stage ends the call.
    with pytest.raises(StopAsyncIteration):
        await alone.sent()
    alone.end()
    await shared.opened(1)
    await ended(streams, shared)


async def test_stream_of_a_session_that_sent_nothing_is_left() -> None:
    streams, replica = StandingStreams(), Replica()
    streams.open_line(replica, opening(last=False)).cancel()  # type: ignore[arg-type]
    (rpc,) = replica.streams
    assert (await rpc.sent()).HasField("goodbye")
    await ended(streams, rpc)


async def test_call_on_which_nothing_is_confirmed_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirmation_clock, "TICK_S", 0.0)
    streams, replica = StandingStreams(), Replica(resume_window_s=60.0)
    line = streams.open_line(replica, opening("a"))  # type: ignore[arg-type]
    (stalled,) = replica.streams
    lost = await stalled.opened(1)
    await replica.called_again.wait()
    assert stalled.cancelled
    _, rpc = replica.streams
    rpc.state(stage_pb2.LineResponse(resumed=True))
    again = await rpc.opened(1)
    assert rpc.hello is not None
    assert rpc.hello.hello.resume
    assert [each.request for each in again] == [each.request for each in lost]
    rpc.state(stage_pb2.LineResponse(messages=[message(1, "x"), end(1)], received=2))
    assert await edges(line) == ["x"]
    await ended(streams, rpc)


async def test_streams_move_at_once_when_the_connection_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # They are not given up because nothing was confirmed.
    monkeypatch.setattr(confirmation_clock, "STALLED_TICKS", 1 << 30)
    streams, replica = StandingStreams(), Replica(resume_window_s=60.0)
    begins = (opening("a"), opening("b", last=False))
    lines = [streams.open_line(replica, each) for each in begins]  # type: ignore[arg-type]
    before = list(replica.streams)
    reading = {}
    assert (await before[0].opened(1))[0].request.open == begins[0]
    assert (await before[1].sent()).request.open == begins[1]
    for rpc, line in zip(before, lines, strict=True):
        rpc.send(message(1, "a"))
        assert rpc.hello is not None
        reading[rpc.hello.hello.stream_id] = responses = line.responses()
        assert (await anext(responses)).chunk.edge == "a"
    replica.open_anew()
    await asyncio.wait_for(replica.called(4), 120.0)
    assert [each.cancelled for each in replica.streams] == [True, True, False, False]
    for rpc in replica.streams[2:]:
        rpc.state(stage_pb2.LineResponse(resumed=True))
        assert (await rpc.sent()).HasField("request")
        assert rpc.hello is not None
        assert (rpc.hello.hello.resume, rpc.hello.received) == (True, 1)
        rpc.state(stage_pb2.LineResponse(messages=[message(1, "x"), end(1)], received=1))
        responses = reading.pop(rpc.hello.hello.stream_id)
        assert [each.chunk.edge async for each in responses] == ["x"]
    assert not reading
    assert len(replica.streams) == 4
    for rpc in replica.streams[2:]:
        rpc.end()
    await streams.close()


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
async def test_stage_that_received_a_damaged_hello_is_called_again(code: grpc.StatusCode) -> None:
    streams, replica = StandingStreams(), Replica(resume_window_s=60.0)
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    await replica.streams[0].opened(1)
    replica.streams[0].end(Unavailable("a message came damaged"))
    await replica.called(2)
    typed = grpc.aio.Metadata((ERROR_METADATA_KEY, b""))
    replica.streams[1].end(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), typed, "a message"))
    if code is not grpc.StatusCode.UNAVAILABLE:
        with pytest.raises(Unavailable):
            await edges(line)
        assert len(replica.streams) == 2
        return
    await replica.called(3)
    rpc = replica.streams[2]
    rpc.state(stage_pb2.LineResponse(resumed=True))
    await rpc.opened(1)
    rpc.state(stage_pb2.LineResponse(messages=[end(1)], received=2))
    assert await edges(line) == []
    await ended(streams, rpc)


async def test_connection_on_which_a_stream_is_not_continued_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standing_stream, "ANSWER_WITHIN_S", 0.01)
    streams, replica = StandingStreams(), Replica(resume_window_s=60.0)
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    (broken,) = replica.streams
    await broken.opened(1)
    replaced = asyncio.Event()

    def answer() -> None:
        # From now on, the stage continues the stream on each call.
        replica.stated.resumed = True
        replaced.set()

    replica.on_replaced.add(answer)
    broken.end(Unavailable("a message came damaged"))
    await replaced.wait()
    await replica.called(3)
    _, unanswered, rpc = replica.streams
    assert unanswered.cancelled
    await rpc.opened(1)
    rpc.state(stage_pb2.LineResponse(messages=[end(1)], received=2))
    assert await edges(line) == []
    await ended(streams, rpc)


@pytest.mark.parametrize("answers", [True, False], ids=["refuses", "is silent"])
async def test_connection_stays_if_the_last_call_had_too_little_time(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_stream, "RESUME_WITHIN_S", 0.05)
    monkeypatch.setattr(standing_stream, "ANSWER_WITHIN_S", 600.0)
    streams, replica = StandingStreams(), Replica(resume_window_s=60.0)
    run_sessions = replica.stub.RunSessions

    def call(requests: AsyncIterator[Request]) -> Rpc:
        rpc: Rpc = run_sessions(requests)
        if answers and len(replica.streams) > 1:
            rpc.end(Unavailable("a message came damaged"))
        return rpc

    replica.stub.RunSessions = call
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    (broken,) = replica.streams
    await broken.opened(1)
    channel = replica.channel
    broken.end(Unavailable("a message came damaged"))
    with pytest.raises(Unavailable, match="came damaged"):
        await edges(line)
    assert len(replica.streams) > 1
    assert replica.channel is channel
    await streams.close()


async def continued(replica: Replica, calls: int, reading: asyncio.Task[list[str]]) -> None:
    """Wait until the stream of a line that is being read has made this many calls."""
    calling = asyncio.create_task(replica.called(calls))
    await asyncio.wait((calling, reading), return_when=asyncio.FIRST_COMPLETED)
    assert calling.done(), "the stream was given up"


async def test_quiet_stream_may_move_any_number_of_times() -> None:
    streams, replica = StandingStreams(), Replica(resume_window_s=600.0)
    line = streams.open_line(replica, opening(last=False))  # type: ignore[arg-type]
    reading = asyncio.create_task(edges(line))
    await replica.streams[0].sent()
    for moves in range(1, MOST_FRUITLESS + 2):
        replica.open_anew()
        await continued(replica, moves + 1, reading)
        rpc = replica.streams[-1]
        rpc.state(stage_pb2.LineResponse(resumed=True))
        # The stage has lost it, so it is sent again.
        assert (await rpc.sent()).HasField("request")
    rpc.state(stage_pb2.LineResponse(messages=[message(1, "x"), end(1)], received=1))
    assert await reading == ["x"]
    await ended(streams, rpc)


async def test_stream_whose_calls_stall_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation_clock, "TICK_S", 0.0)
    streams, replica = StandingStreams(), Replica(resume_window_s=600.0)
    line = streams.open_line(replica, opening(last=False))  # type: ignore[arg-type]
    reading = asyncio.create_task(edges(line))
    await replica.streams[0].sent()
    for calls in range(2, MOST_FRUITLESS + 1):
        await continued(replica, calls, reading)
        rpc = replica.streams[-1]
        rpc.state(stage_pb2.LineResponse(resumed=True))
        assert (await rpc.sent()).HasField("request")
    with pytest.raises(Unavailable, match="was lost"):
        await reading
    assert len(replica.streams) == MOST_FRUITLESS


async def test_stream_whose_messages_are_confirmed_is_not_given_up() -> None:
    streams, replica = StandingStreams(), Replica(resume_window_s=600.0)
    line = streams.open_line(replica, opening(last=False))  # type: ignore[arg-type]
    reading = asyncio.create_task(edges(line))
    (rpc,) = replica.streams
    await rpc.sent()
    for calls in range(1, MOST_FRUITLESS + 2):
        rpc.state(stage_pb2.LineResponse(received=calls))
        rpc.end(Unavailable("a proxy has closed the connection"))
        await continued(replica, calls + 1, reading)
        rpc = replica.streams[-1]
        rpc.state(stage_pb2.LineResponse(resumed=True, received=calls))
        line.send(credit("audio"))
        assert (await rpc.sent()).HasField("request")
    rpc.state(stage_pb2.LineResponse(messages=[end(1)], received=calls + 1))
    assert await reading == []
    await ended(streams, rpc)


async def test_clock_stays_stopped_when_the_stream_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams, replica = StandingStreams(), Replica(resume_window_s=60.0)
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await rpc.sent()
    rpc.end()
    with pytest.raises(Unavailable, match="closed the stream"):
        await edges(line)
    started: list[object] = []
    monkeypatch.setattr(confirmation_clock.ConfirmationClock, "start", started.append)
    with pytest.raises(StopAsyncIteration):
        await rpc.sent()
    assert not started
    await streams.close()


async def test_call_that_the_stage_never_begins_ends_its_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirmation_clock, "TICK_S", 0.0)
    streams, replica = StandingStreams(), Replica()
    replica.stated = stage_pb2.LineResponse()
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await rpc.opened(1)
    with pytest.raises(Unavailable):
        await edges(line)
    await streams.close()


async def test_cancelled_line_is_cancelled_at_the_stage_and_gets_nothing_more() -> None:
    streams, replica = StandingStreams(), Replica()
    gone, stays = (streams.open_line(replica, opening(name)) for name in "ab")  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await rpc.opened(2)
    gone.cancel()
    gone.cancel()
    assert (await rpc.sent()).HasField("cancel")
    assert replica.slots == 1
    rpc.send(message(1, "late"), end(1), message(2, "x"), end(2))
    with pytest.raises(Unavailable):
        await edges(gone)
    assert await edges(stays) == ["x"]
    await ended(streams, rpc)


async def test_line_that_is_cancelled_before_it_was_sent_leaves_no_trace() -> None:
    streams, replica = StandingStreams(), Replica()
    first, second = (streams.open_line(replica, opening(name)) for name in "ab")  # type: ignore[arg-type]
    first.cancel()
    second.half_close()
    (rpc,) = replica.streams
    assert [each.line for each in await rpc.opened(1)] == [2]
    rpc.send(end(2))
    assert await edges(second) == []
    await ended(streams, rpc)


async def test_reader_states_what_it_has_processed() -> None:
    size_bytes = message(1, "0123").response.ByteSize()
    streams, replica = StandingStreams(), Replica(window_bytes=8 * size_bytes)
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await rpc.opened(1)
    rpc.send(*[message(1, "0123")] * 3)
    responses = line.responses()
    for _ in range(3):
        await anext(responses)
    # Each is processed when the next is asked for.
    assert (await rpc.sent()).processed_bytes == 2 * size_bytes
    rpc.send(end(1))
    assert [each async for each in responses] == []
    await ended(streams, rpc)


async def test_stage_that_exceeds_the_window_that_it_states_loses_the_line() -> None:
    streams, replica = StandingStreams(), Replica(window_bytes=1)
    flooded, other = (streams.open_line(replica, opening(name)) for name in "ab")  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await rpc.opened(2)
    rpc.send(message(1), message(1), message(2, "x"), end(2))
    assert await edges(other) == ["x"]
    with pytest.raises(Unavailable, match="exceeded the window of its line"):
        await edges(flooded)
    assert (await rpc.sent()).HasField("cancel")
    await ended(streams, rpc)


async def test_end_of_the_stream_is_the_loss_of_its_lines_and_the_next_line_opens_another() -> None:
    streams, replica = StandingStreams(), Replica()
    line = streams.open_line(replica, opening("a"))  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await rpc.opened(1)
    rpc.send(message(1, "x"))
    rpc.end(Unavailable("received a corrupt message"))
    responses = line.responses()
    assert (await anext(responses)).chunk.edge == "x"
    with pytest.raises(Unavailable, match="the stage talker at nowhere was lost"):
        await anext(responses)
    assert rpc.cancelled
    again = streams.open_line(replica, opening("b"))  # type: ignore[arg-type]
    assert len(replica.streams) == 2
    assert (await replica.streams[1].sent()).line == 1
    replica.streams[1].send(end(1))
    assert await edges(again) == []
    await ended(streams, replica.streams[1])


async def test_stage_that_states_no_window_loses_its_lines() -> None:
    streams, replica = StandingStreams(), Replica(window_bytes=0)
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="didn't specify the window"):
        await edges(line)
    assert replica.streams[0].cancelled


async def test_unforeseen_error_of_the_stream_is_logged_and_ends_its_lines_by_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    streams, replica = StandingStreams(), Replica()
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    replica.streams[0].end(ZeroDivisionError("of a fault in the code"))
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(Internal, match="ZeroDivisionError") as ended,
    ):
        await edges(line)
    assert ended.value.stage == "talker"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert replica.streams[0].cancelled


async def test_stream_whose_calls_break_before_anything_comes_is_given_up() -> None:
    streams, replica = StandingStreams(), Replica(resume_window_s=600.0)
    run_sessions = replica.stub.RunSessions

    def broken(requests: AsyncIterator[Request]) -> Rpc:
        rpc: Rpc = run_sessions(requests)
        rpc.state(stage_pb2.LineResponse(resumed=len(replica.streams) > 1))
        rpc.end(Unavailable("received a corrupt message"))
        return rpc

    replica.stub.RunSessions = broken
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="received a corrupt message"):
        await edges(line)
    assert len(replica.streams) == MOST_FRUITLESS
    assert replica.streams[-1].cancelled


@pytest.mark.parametrize("count", [1, -1])
async def test_stage_that_continues_elsewhere_loses_its_lines(count: int) -> None:
    streams, replica = StandingStreams(), Replica(resume_window_s=600.0)
    line = streams.open_line(replica, opening())  # type: ignore[arg-type]
    (rpc,) = replica.streams
    await rpc.opened(1)
    confirmed = stage_pb2.LineResponse(messages=[message(1, "x")], received=2)
    rpc.state(confirmed)
    responses = line.responses()
    assert (await anext(responses)).chunk.edge == "x"
    rpc.end(Unavailable("received a corrupt message"))
    await replica.called_again.wait()
    second = replica.streams[1]
    second.state(stage_pb2.LineResponse(resumed=True, received=2 + count))
    with pytest.raises(Unavailable, match="was lost"):
        await anext(responses)
    assert second.cancelled
