from __future__ import annotations

import asyncio

from antiphon.errors import AntiphonError, Internal
from antiphon.runtime.server.link_port import answer_on
from antiphon.runtime.server.outbox import Outbox
from antiphon.runtime.server.stage import Answer
from antiphon.runtime.session.instructions import Grant
from antiphon.transport.link.incoming.link import IncomingLink
from antiphon.transport.settings import LinkState
from antiphon.values.segment import SegmentKey


async def test_answers_go_on_when_one_does_not_fit_its_message() -> None:
    link = IncomingLink("l", ("h", "a"), "boot", LinkState(outgoing=False))
    outbox: Outbox[Answer] = Outbox(1 << 20)
    failed: list[tuple[str, AntiphonError]] = []
    for session_id, positions in (("greedy", 1 << 64), ("modest", 7)):
        outbox.put_nowait(Grant("l", SegmentKey(session_id, 0), "codes", positions))
    answering = asyncio.create_task(
        answer_on(link, outbox, lambda session_id, error: failed.append((session_id, error)))
    )
    await link.changed.wait()
    (response,) = link.responses.since(0)
    assert (response.credit.session_id, response.credit.positions) == ("modest", 7)
    ((session_id, error),) = failed
    assert session_id == "greedy"
    assert isinstance(error, Internal)
    answering.cancel()
