from __future__ import annotations

import numpy as np
import pytest

from antiphon.errors import ResourceExhausted
from antiphon.transport.send_log import Outgoing, SendLog
from antiphon.v1 import chunk_pb2
from antiphon.wire.blob import Encoding


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
    log = SendLog(1000)
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
    log = SendLog(1000)
    log.append(chunk(0, 5000))
    with pytest.raises(ResourceExhausted, match="1000 bytes"):
        log.append(chunk(1, 10))
    assert taken(log) == [0]
    log.append(chunk(1, 10))
    assert taken(log) == []
    log.acknowledge(1)
    assert taken(log) == [1]


def test_sending_stops_while_too_much_is_not_acknowledged() -> None:
    log = SendLog(1000)
    for number in range(5):
        log.append(chunk(number, 400))
        if number < 3 and (each := log.first()) is not None:
            log.sent(each)
    assert log.waits
    assert log.first() is None
    log.acknowledge(1)
    assert log.first() is not None


def test_chunk_passes_one_of_a_held_session_but_none_of_its_own() -> None:
    log = SendLog(1000)
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
    with pytest.raises(ValueError, match="not in deque"):
        log.sent(behind)
    # Sent again, they keep the order in which they were sent.
    assert log.rewind(0) == 3
    assert log.first() is other


def test_nothing_is_numbered_that_is_not_under_way() -> None:
    log = SendLog(1000)
    log.append(chunk(0))
    assert log.numbered(0) is None
    assert taken(log) == [0]
    log.acknowledge(1)
    assert log.numbered(0) is None


def test_acknowledging_more_than_was_sent_is_harmless() -> None:
    log = SendLog(1000)
    log.append(chunk(0))
    log.acknowledge(5)
    assert log.acknowledged == 0
    assert taken(log) == [0]
