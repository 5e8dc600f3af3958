from __future__ import annotations

import pytest

from antiphon.errors import ResourceExhausted
from antiphon.transport import response_log
from antiphon.transport.link.incoming.link import IncomingLink
from antiphon.transport.response_log import ResponseLog
from antiphon.transport.settings import LinkState
from antiphon.v1 import stage_pb2


def credit(positions: int) -> stage_pb2.LinkResponse:
    return stage_pb2.LinkResponse(credit=stage_pb2.LinkCredit(positions=positions))


def positions(responses: list[stage_pb2.LinkResponse]) -> list[int]:
    return [response.credit.positions for response in responses]


def test_responses_stay_until_they_are_confirmed() -> None:
    log = ResponseLog()
    for number in range(4):
        log.append(credit(number))
    assert positions(log.since(0)) == [0, 1, 2, 3]
    assert positions(log.since(3)) == [3]
    log.confirmed(2)
    assert (log.first, log.count) == (2, 4)
    assert positions(log.since(2)) == [2, 3]
    log.confirmed(1)
    assert log.first == 2
    log.confirmed((1 << 64) - 1)
    assert (log.first, log.count) == (4, 4)
    log.append(credit(4))
    assert positions(log.since(4)) == [4]


def test_responses_are_bounded_when_none_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_log, "MAX_RESPONSES", 3)
    log = ResponseLog()
    for number in range(3):
        log.append(credit(number))
    with pytest.raises(ResourceExhausted):
        log.append(credit(3))
    log.confirmed(1)
    log.append(credit(3))
    assert log.count == 4


async def test_link_is_overrun_when_its_producer_confirms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response_log, "MAX_RESPONSES", 1)
    link = IncomingLink("l", ("h", "a"), "boot", LinkState(outgoing=False))
    link.respond(credit(0))
    assert not link.overrun
    link.changed.clear()
    link.respond(credit(1))
    assert link.overrun
    assert link.changed.is_set()
