"""The protocol in many orders, and that what is wrong with it would be found."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.runtime.server.line_table import LineTable
from antiphon.runtime.server.numbered_lines import NumberedLines
from antiphon.runtime.server.served_session import ServedSession
from antiphon.runtime.session.live_sessions import LiveSessions
from antiphon.runtime.session.session import LiveSession
from antiphon.runtime.session.table import SessionTable
from antiphon.transport.link.incoming.carriers import IncomingCarriers
from antiphon.transport.link.outgoing.carriers import OutgoingCarriers
from antiphon.transport.link.outgoing.send_log import SendLog
from antiphon.transport.numbered_stream import NumberedStream
from antiphon.transport.response_log import ResponseLog
from antiphon.transport.ring.entries import EntryReader, EntryWriter
from antiphon.transport.settings import LinkState
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.history import History
from antiphon.wire.frames import CameOnLink
from antiphon_gateway.failover.delivered import DeliveredOutput
from antiphon_gateway.sessions import standing_lines
from antiphon_gateway.sessions.connection_errors import ConnectionCancelled, WindowExceeded
from antiphon_gateway.sessions.standing_lines import StandingLine, StandingLines
from antiphon_tools.simulation.__main__ import main
from antiphon_tools.simulation.search import (
    Found,
    Scenario,
    link_scenario_of,
    play,
    scenario_of,
    shrink,
)
from antiphon_tools.simulation.standing import WINDOW_BYTES

SEEDS = 200
MOST_SEEDS = 2_000
"""In which a planted fault must show."""


def test_nothing_is_wrong_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", str(SEEDS)]) == 0, capsys.readouterr().err


def test_nothing_is_wrong_on_a_link_in_any_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    carried: Counter[str] = Counter()

    def count(_: LinkState, size_bytes: int, carrier: str) -> None:
        carried[carrier] += 1

    monkeypatch.setattr(LinkState, "count_message", count)
    assert main(["--links", "--seeds", str(SEEDS)]) == 0, capsys.readouterr().err
    assert carried["ring"] > SEEDS


def test_a_seed_draws_the_same_world_again() -> None:
    assert scenario_of(5) == scenario_of(5) != scenario_of(6)
    assert play(scenario_of(5)) == play(scenario_of(5))


def nothing(*_: object) -> list[Any]:
    return []


def keep_on(*_: object) -> None:
    return


def count_nothing(*_: object) -> int:
    return 0


def lose_the_first_frame(delivered: DeliveredOutput) -> History:
    return History(frames=WHOLE_HISTORY(delivered).frames[1:])


HANDLED, RECEIVED = LineTable.handle, StandingLine.receive
HANDLED_EACH = vars(LineTable)["_handle"]
RECEIVED_ALL, TAKEN = StandingLines.receive, LineTable.take


def count_twice(table: LineTable, request: stage_pb2.LineRequest) -> None:
    """The stage counts what a reader has processed once more than it should."""
    if request.HasField("processed_bytes"):
        request.processed_bytes *= 2
    HANDLED_EACH(table, request)


def drop_reports(table: LineTable, request: stage_pb2.LineRequest) -> None:
    if not request.HasField("processed_bytes"):
        HANDLED_EACH(table, request)


def drop_the_tail(table: LineTable, request: stage_pb2.LineRequest) -> None:
    del request.batch.requests[-1:]
    HANDLED(table, request)


def reverse(table: LineTable, request: stage_pb2.LineRequest) -> None:
    if request.HasField("batch"):
        turned = [*request.batch.requests][::-1]
        request = stage_pb2.LineRequest(batch=stage_pb2.LineRequests(requests=turned))
    HANDLED(table, request)


def handle_twice(table: LineTable, request: stage_pb2.LineRequest) -> None:
    HANDLED(table, request)
    if request.HasField("batch"):
        HANDLED(table, request)


def take_no_bound(lines: StandingLines, response: stage_pb2.LineResponse) -> None:
    if response.window_bytes:
        response.batch_requests = standing_lines.BATCH_REQUESTS
    RECEIVED_ALL(lines, response)


def stop_at_an_overrun(lines: StandingLines, response: stage_pb2.LineResponse) -> None:
    """What follows an overrun in one message is dropped, of whichever line it is."""
    for count, message in enumerate(response.messages):
        size_bytes = message.response.ByteSize()
        if size_bytes >= WINDOW_BYTES:
            del response.messages[count + 1 :]
            break
    RECEIVED_ALL(lines, response)


def ends_first(table: LineTable) -> list[stage_pb2.LineMessage]:
    return sorted(TAKEN(table), key=lambda message: not message.HasField("end"))


def end_here_alone(line: StandingLine) -> None:
    """A line that is cancelled is not cancelled at the stage."""
    line.end(ConnectionCancelled())


def raise_overrun(line: StandingLine, response: session_pb2.SessionResponse) -> None:
    """A line that overruns ends the stream."""
    RECEIVED(line, response)
    if isinstance(line.failure, WindowExceeded):
        raise line.failure


REWOUND = NumberedStream.rewind


def rewind_too_far(stream: NumberedStream[Any], count: int) -> None:
    """The first of what is sent again is sent twice."""
    REWOUND(stream, count)
    if again := vars(stream)["_again"]:
        again.appendleft(again[0])


def rewind_too_little(stream: NumberedStream[Any], count: int) -> None:
    """The first of what should be sent again is not."""
    REWOUND(stream, count)
    if again := vars(stream)["_again"]:
        again.popleft()


def send_again_in_reverse(stream: NumberedStream[Any], count: int) -> None:
    REWOUND(stream, count)
    vars(stream)["_again"].reverse()


def take_while_suspended(lines: StandingLines) -> None:
    """The gateway sends before it knows where the stage continues."""


WHOLE_HISTORY = vars(DeliveredOutput)["history"].fget
FAULTS: dict[str, tuple[object, str, Any]] = {
    "what is processed is counted twice": (LineTable, "_handle", count_twice),
    "what is processed is not counted": (LineTable, "_handle", drop_reports),
    "a stream that is lost frees nothing": (LineTable, "close", keep_on),
    "the end of a line is not sent": (LineTable, "_say_end", keep_on),
    "a line that is done stays": (ServedSession, "done", keep_on),
    "readers do not learn of a lost stream": (StandingLines, "end", keep_on),
    "a cancel of a line is not sent": (StandingLine, "cancel", end_here_alone),
    "a line that overruns ends the others": (StandingLine, "receive", raise_overrun),
    "the last request of a batch is dropped": (LineTable, "handle", drop_the_tail),
    "a batch is handled in reverse": (LineTable, "handle", reverse),
    "a batch is handled twice": (LineTable, "handle", handle_twice),
    "a batch has no bound": (StandingLines, "receive", take_no_bound),
    "an overrun drops what other lines got with it": (StandingLines, "receive", stop_at_an_overrun),
    "lines end before their last responses": (LineTable, "take", ends_first),
    "credit is dropped": (SessionTable, "_credit", nothing),
    "a lost destination is not noticed": (SessionTable, "_lose_target", nothing),
    "who left is kept": (SessionTable, "_stream_lost", nothing),
    "a cancel is not heard": (SessionTable, "_cancel_segment", nothing),
    "what was cancelled is never reported": (LiveSession, "released", nothing),
    "a session that is done stays": (LiveSessions, "end_if_done", nothing),
    "attempts are mixed up": (DeliveredOutput, "start_over", keep_on),
    "a history lacks a frame": (DeliveredOutput, "history", property(lose_the_first_frame)),
    "acknowledgements are dropped": (SendLog, "acknowledge", nothing),
    "nothing is sent again": (SendLog, "rewind", count_nothing),
    "answers that a break has lost stay lost": (ResponseLog, "since", nothing),
}

SUSPENSION_FAULTS: dict[str, tuple[object, str, Any]] = {
    "a message that is sent again is sent twice": (NumberedStream, "rewind", rewind_too_far),
    "a message that is sent again is dropped": (NumberedStream, "rewind", rewind_too_little),
    "messages are sent again in reverse": (NumberedStream, "rewind", send_again_in_reverse),
    "nothing of a stream is sent again": (NumberedStream, "rewind", keep_on),
    "what a stream has received is not counted": (NumberedStream, "arrived", keep_on),
    "a suspended gateway goes on sending": (StandingLines, "suspend", take_while_suspended),
    "a stage does not continue": (NumberedLines, "begin", keep_on),
}
"""They show after a stream has continued in the middle of an answer, which takes a longer story."""

WRITTEN, MESSAGES, WROTE = (
    EntryWriter.write,
    EntryReader.messages,
    vars(OutgoingCarriers)["_wrote_to_ring"],
)


def overtake_the_stream(ring: EntryReader, taken: int) -> list[bytes]:
    return MESSAGES(ring, 1 << 32)


def forget_the_stream(ring: EntryWriter, message: bytes, after: int) -> bool:
    """The entry does not say what was sent on the stream before it."""
    return WRITTEN(ring, message, 0)


def wait_for_one_more(ring: EntryWriter, message: bytes, after: int) -> bool:
    return WRITTEN(ring, message, after + 1)


def drop_when_full(carriers: OutgoingCarriers, message: stage_pb2.LinkRequest) -> bool:
    """What does not fit into the ring is not sent on the stream either."""
    WROTE(carriers, message)
    return True


def drop_the_last(ring: EntryReader, taken: int) -> list[bytes]:
    """What is read of a ring that has several messages lacks one."""
    found = MESSAGES(ring, taken)
    return found[:-1] if len(found) > 1 else found


def read_in_reverse(ring: EntryReader, taken: int) -> list[bytes]:
    return MESSAGES(ring, taken)[::-1]


def overwrite(ring: EntryWriter, size: int) -> bool:
    """A ring that is full is written to."""
    return True


def mangle(ring: EntryWriter, message: bytes, after: int) -> bool:
    """An entry does not hold the message, whatever its checksum says."""
    return WRITTEN(ring, message[:-1] + bytes([message[-1] ^ 1]), after)


async def take_the_ring_first(carriers: IncomingCarriers, message: CameOnLink) -> bool:
    """Entries that wait for a message of the stream are not read after it."""
    inner = vars(carriers)
    if inner["_ring"] is not None:
        inner["_ring"].notice()
    if not (await inner_take(carriers) and await inner["_handle"](message)):
        return False
    inner["_taken"] += 1
    return True


async def take_the_ring_last(carriers: IncomingCarriers, message: CameOnLink) -> bool:
    """A message of the stream overtakes the entries that were written before it."""
    inner = vars(carriers)
    if not await inner["_handle"](message):
        return False
    inner["_taken"] += 1
    if inner["_ring"] is not None:
        inner["_ring"].notice()
    return await inner_take(carriers)


async def inner_take(carriers: IncomingCarriers) -> bool:
    return bool(await vars(IncomingCarriers)["_take_ring"](carriers))


CARRIER_FAULTS: dict[str, tuple[object, str, Any]] = {
    "an entry overtakes the stream": (EntryReader, "messages", overtake_the_stream),
    "an entry does not know the stream": (EntryWriter, "write", forget_the_stream),
    "an entry waits for a message that does not come": (EntryWriter, "write", wait_for_one_more),
    "an entry is no message": (EntryWriter, "write", mangle),
    "an entry that does not fit is lost": (OutgoingCarriers, "_wrote_to_ring", drop_when_full),
    "an entry is not handled": (EntryReader, "messages", drop_the_last),
    "entries are handled in reverse": (EntryReader, "messages", read_in_reverse),
    "entries that are unread are overwritten": (EntryWriter, "_has_space", overwrite),
    "entries that are due are left": (IncomingCarriers, "take_message", take_the_ring_first),
    "the stream overtakes an entry": (IncomingCarriers, "take_message", take_the_ring_last),
}


def first_finding(draw: Callable[[int], Scenario] = scenario_of) -> Found:
    for seed in range(MOST_SEEDS):
        result = play(draw(seed))
        if isinstance(result, Found):
            return result
    raise AssertionError("it was not found")


def test_what_comes_late_of_a_line_whose_number_is_used_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reused = SimpleNamespace(count=lambda _: itertools.cycle((1, 2, 3)))
    monkeypatch.setattr(standing_lines, "itertools", reused)
    takes_any = property(lambda _: 0, keep_on)
    monkeypatch.setattr(LineTable, "_newest", takes_any, raising=False)
    assert shrink(first_finding()).chosen <= 60


@pytest.mark.parametrize("fault", CARRIER_FAULTS)
def test_a_fault_of_a_carrier_is_found_and_its_story_is_short(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, replacement = CARRIER_FAULTS[fault]
    monkeypatch.setattr(where, name, replacement)
    assert shrink(first_finding(link_scenario_of)).chosen <= 30


@pytest.mark.parametrize("fault", FAULTS | SUSPENSION_FAULTS)
def test_a_planted_fault_is_found_and_its_story_is_short(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, replacement = (FAULTS | SUSPENSION_FAULTS)[fault]
    monkeypatch.setattr(where, name, replacement)
    found = first_finding()
    short = shrink(found)
    assert short.chosen <= min(30 if fault in FAULTS else 60, found.chosen)
    assert str(short).splitlines()[-1].strip() == short.what
