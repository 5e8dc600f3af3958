from __future__ import annotations

import numpy as np
import pytest

from antiphon.errors import ResourceExhausted
from antiphon.transport.link.outgoing.send_log import Outgoing, SendLog
from antiphon.v1 import chunk_pb2
from antiphon.wire.blob import Encoding

LINK = 1 << 20


def chunk(number: int, size: int = 0, session: str = "s") -> Outgoing:
    encoding = Encoding({"x": np.zeros(size, np.uint8)}) if size else None
    return Outgoing(chunk_pb2.Chunk(session_id=session, sequence=number), encoding)


def taken(log: SendLog) -> list[int]:
    numbers = []
    while (each := log.first()) is not None:
        number = log.sent(each)
        assert each.address.sequence == number
        assert log.numbered(number) is each
        numbers.append(number)
    return numbers


def test_chunks_keep_their_numbers_when_they_are_sent_again() -> None:
    log = SendLog(1000, LINK)
    for number in range(6):
        log.append(chunk(number))
    assert taken(log) == [0, 1, 2, 3, 4, 5]
    assert [each.address.sequence for each in log.acknowledge(2)] == [0, 1]
    assert log.rewind(3) == 3
    assert taken(log) == [3, 4, 5]
    assert log.rewind(0) == 4
    assert taken(log) == [2, 3, 4, 5]
    log.acknowledge(6)
    log.append(chunk(6))
    assert taken(log) == [6]
    assert log.acknowledged == 6


def test_waiting_is_refused_over_the_bound_and_one_large_chunk_goes_alone() -> None:
    log = SendLog(1000, LINK)
    log.append(chunk(0, 5000))
    with pytest.raises(ResourceExhausted, match="1000 bytes"):
        log.append(chunk(1, 10))
    assert taken(log) == [0]
    log.append(chunk(1, 10))
    assert taken(log) == []
    log.acknowledge(1)
    assert taken(log) == [1]


def test_sending_stops_while_too_much_is_not_acknowledged() -> None:
    log = SendLog(1000, LINK)
    for number in range(5):
        log.append(chunk(number, 400))
        if number < 3 and (each := log.first()) is not None:
            log.sent(each)
    assert log.waits
    assert log.first() is None
    log.acknowledge(1)
    assert log.first() is not None


def test_chunk_passes_one_of_a_held_session_but_none_of_its_own() -> None:
    log = SendLog(1000, LINK)
    held, behind, other = chunk(0, 500, "large"), chunk(1, 0, "large"), chunk(0, 0, "small")
    for each in (held, behind, other):
        log.append(each)
    assert log.first() is held
    assert log.first({"large"}) is other
    assert log.sent(other) == 0
    assert log.first({"large"}) is None
    assert log.first() is held
    assert log.sent(held) == 1
    assert log.sent(behind) == 2
    with pytest.raises(ValueError, match="not the next"):
        log.sent(behind)
    # Sent again, they keep the order in which they were sent.
    assert log.rewind(0) == 3
    assert log.first() is other


def test_nothing_is_numbered_that_is_not_under_way() -> None:
    log = SendLog(1000, LINK)
    log.append(chunk(0))
    assert log.numbered(0) is None
    assert taken(log) == [0]
    log.acknowledge(1)
    assert log.numbered(0) is None


def test_acknowledging_more_than_was_sent_is_harmless() -> None:
    log = SendLog(1000, LINK)
    log.append(chunk(0))
    log.acknowledge(5)
    assert log.acknowledged == 0
    assert taken(log) == [0]


def payload_bytes(size: int) -> int:
    return chunk(0, size).size_bytes


def test_session_is_not_refused_when_another_fills_its_own_bound() -> None:
    log = SendLog(1000, LINK)
    log.append(chunk(0, 900, "large"))
    with pytest.raises(ResourceExhausted, match="of the session"):
        log.append(chunk(1, 900, "large"))
    for number in range(100):
        log.append(chunk(number, 8, "small") if number < 2 else chunk(number, 0, "small"))


def test_link_refuses_only_those_over_their_share_when_it_is_full() -> None:
    size = payload_bytes(1000)
    log = SendLog(100 * size, 4 * size)
    for number in range(4):
        log.append(chunk(number, 1000, "large"))
    with pytest.raises(ResourceExhausted, match="its share") as caught:
        log.append(chunk(4, 1000, "large"))
    assert "of all sessions" in caught.value.message
    log.append(chunk(0, 1000, "small"))
    log.append(chunk(1, 1000, "small"))
    with pytest.raises(ResourceExhausted, match="its share"):
        log.append(chunk(2, 1000, "small"))
    # What was sent counts until it is acknowledged, and again when it is sent again.
    assert taken_from(log, 6) == ["large", "small", "large", "small", "large", "large"]
    with pytest.raises(ResourceExhausted, match="its share"):
        log.append(chunk(2, 1000, "small"))
    assert log.rewind(3) == 3
    with pytest.raises(ResourceExhausted, match="its share"):
        log.append(chunk(2, 1000, "small"))
    taken_from(log, 3)
    log.acknowledge(3)
    log.append(chunk(2, 1000, "small"))


def taken_from(log: SendLog, count: int) -> list[str]:
    sessions = []
    for _ in range(count):
        each = log.first()
        assert each is not None
        log.sent(each)
        sessions.append(each.session_id)
    return sessions


def test_share_of_a_full_link_counts_the_session_that_comes() -> None:
    log = SendLog(10_000, 2000)
    log.append(chunk(0, 1100, "first"))
    with pytest.raises(ResourceExhausted, match="its share of 1000"):
        log.append(chunk(0, 1100, "second"))
    log.append(chunk(0, 100, "second"))


def test_one_chunk_goes_alone_on_an_empty_link_however_large_it_is() -> None:
    log = SendLog(10, 10)
    log.append(chunk(0, 5000))
    assert taken(log) == [0]
    log.acknowledge(1)
    log.append(chunk(1, 5000))
    assert taken(log) == [1]


def test_sessions_take_turns() -> None:
    log = SendLog(1000, LINK)
    for number in range(3):
        log.append(chunk(number, 0, "a"))
    log.append(chunk(0, 0, "b"))
    log.append(chunk(0, 0, "c"))
    assert taken_from(log, 5) == ["a", "b", "c", "a", "a"]


def test_bytes_count_again_when_they_are_sent_again() -> None:
    size = payload_bytes(400)
    log = SendLog(2 * size, LINK)
    log.append(chunk(0, 400))
    log.append(chunk(1, 400))
    assert taken(log) == [0, 1]
    # Both bounds have to know of it: nothing of the session may be appended, all may be sent.
    assert log.rewind(0) == 2
    with pytest.raises(ResourceExhausted):
        log.append(chunk(2, 400))
    assert taken(log) == [0, 1]
    log.append(chunk(2, 400))
    assert log.first() is None
    log.acknowledge(1)
    assert log.first() is not None


def test_log_knows_whose_chunks_are_not_acknowledged() -> None:
    log = SendLog(1000, LINK)
    log.append(chunk(0, 0, "a"))
    log.append(chunk(0, 0, "b"))
    log.append(chunk(1, 0, "b"))
    assert set(log.sessions) == {"a", "b"}
    taken_from(log, 2)
    log.acknowledge(1)
    assert set(log.sessions) == {"b"}
    log.acknowledge(2)
    assert set(log.sessions) == {"b"}
    assert log.waits
    taken_from(log, 1)
    assert not log.waits
    log.acknowledge(3)
    assert not log.sessions
