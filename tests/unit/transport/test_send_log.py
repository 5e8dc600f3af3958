from __future__ import annotations

import numpy as np
import pytest

from antiphon.errors import ResourceExhausted
from antiphon.transport.send_log import Outgoing, SendLog
from antiphon.v1 import chunk_pb2
from antiphon.wire.blob import Encoding


def chunk(number: int, size: int = 0) -> Outgoing:
    encoding = Encoding({"x": np.zeros(size, np.uint8)}) if size else None
    return Outgoing(chunk_pb2.Chunk(sequence=number), encoding)


def taken(log: SendLog) -> list[int]:
    numbers = []
    while log.sendable:
        number, each = log.take()
        assert each.address.sequence == number
        numbers.append(number)
    return numbers


def test_chunks_keep_their_numbers_when_they_are_sent_again() -> None:
    log = SendLog(1000)
    for number in range(6):
        log.append(chunk(number))
    assert taken(log) == [0, 1, 2, 3, 4, 5]
    log.acknowledge(2)
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
        if number < 3:
            log.take()
    assert not log.sendable
    log.acknowledge(1)
    assert log.sendable


def test_acknowledging_more_than_was_sent_is_harmless() -> None:
    log = SendLog(1000)
    log.append(chunk(0))
    log.acknowledge(5)
    assert log.acknowledged == 0
    assert taken(log) == [0]
