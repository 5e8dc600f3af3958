"""What opening a call asks of stages and of the runtime: counts, which must not grow unnoticed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import antiphon
import antiphon_gateway
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.server.load_watch import LoadWatch
from antiphon.runtime.server.servicer import StageServicer
from benchmarks.opening.calls import PROTOCOLS
from benchmarks.runtime.gateway import gateway_without_models

FRAMES = 2
CALLS = 5
STAGES = len(PIPELINE.roles)
MOST_REQUESTS = STAGES + FRAMES
"""An opening to each stage, with which comes that nothing follows, and at most a credit for each
frame. A call has 3.4 to 4: frames that come together need one credit."""
MOST_RESPONSES = 3 * STAGES - 1 + 2 * FRAMES
"""That a segment is open, its report, and the line's end, of each stage; each token of text and
frame of audio. The last stage's end comes with its report; the ends of the others wait for their
chunks to arrive, which the reports do not. A call has 9.4 to 10."""
MOST_OWN_CALLS = 4580
"""Of gateway and stages. The least of five calls was 4,037 over gRPC and 4,079 over HTTP, with a
load of 10 on two cores. It depends on how messages meet."""
OWN = tuple(f"{Path(str(each.__file__)).parent}/" for each in (antiphon, antiphon_gateway))


class CountedContext:
    """A call's context, whose written messages are counted."""

    def __init__(self, context: Any, counts: Counter[str]) -> None:
        self._context = context
        self._counts = counts

    async def write(self, response: Any) -> None:
        self._counts["responses"] += 1
        await self._context.write(response)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Streams of the stages, and the messages of sessions, of all stages together."""
    counted: Counter[str] = Counter()
    run_session, run_sessions, link, describe = (
        StageServicer.RunSession,
        StageServicer.RunSessions,
        StageServicer.Link,
        StageServicer.Describe,
    )

    async def requests_of(requests: Any) -> AsyncIterator[Any]:
        async for each in requests:
            counted["requests"] += 1
            for request in each.batch.requests or (each,):
                counted["lines"] += request.request.HasField("open")
            yield each

    async def counted_session(self: Any, requests: Any, context: Any) -> None:
        counted["streams"] += 1
        await run_session(self, requests, context)

    async def counted_sessions(self: Any, requests: Any, context: Any) -> None:
        counted["streams"] += 1
        await run_sessions(self, requests_of(requests), CountedContext(context, counted))  # type: ignore[arg-type]

    async def counted_link(self: Any, requests: Any, context: Any) -> None:
        counted["links"] += 1
        await link(self, requests, context)

    async def counted_describe(self: Any, request: Any, context: Any) -> Any:
        counted["descriptions"] += 1
        return await describe(self, request, context)

    monkeypatch.setattr(StageServicer, "RunSession", counted_session)
    monkeypatch.setattr(StageServicer, "RunSessions", counted_sessions)
    monkeypatch.setattr(StageServicer, "Link", counted_link)
    monkeypatch.setattr(StageServicer, "Describe", counted_describe)
    # Reports of the load go by time: a call on a busy machine has more of them.
    monkeypatch.setattr(LoadWatch, "touch", lambda _: None)
    return counted


class OwnCalls:
    """Counts calls of antiphon's functions on this thread, each entry of a coroutine included."""

    def __init__(self) -> None:
        self.count = 0
        self._own: dict[CodeType, bool] = {}

    def __enter__(self) -> OwnCalls:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code not in self._own:
                self._own[code] = code.co_filename.startswith(OWN)
            self.count += self._own[code]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_opening_a_call_takes_as_many_streams_and_messages_as_it_says(
    protocol: str, counts: Counter[str]
) -> None:
    async with gateway_without_models(FRAMES, slots=4) as gateway:
        addresses = {"grpc": gateway.grpc_address, "http": gateway.http_address}
        # The first call opens the links between stages, and the gateway's stream to each stage.
        await PROTOCOLS[protocol](addresses[protocol], 1)
        assert (counts["links"], counts["streams"]) == (STAGES - 1, STAGES)
        counts.clear()
        spent = []
        for _ in range(CALLS):
            with OwnCalls() as own:
                await PROTOCOLS[protocol](addresses[protocol], 1)
            spent.append(own.count)
    assert counts["lines"] == CALLS * STAGES
    assert counts["streams"] == counts["links"] == counts["descriptions"] == 0
    # The last message of the first call's lines may be among them.
    assert counts["requests"] <= CALLS * MOST_REQUESTS + STAGES
    assert counts["responses"] <= CALLS * MOST_RESPONSES + STAGES
    assert min(spent) <= MOST_OWN_CALLS
