"""All live calls: how many there may be, and their end at shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import ResourceExhausted, Unavailable
from antiphon.segment import Delivery
from gateway.calls.call import CLOSE_WAIT_S, Call
from gateway.calls.request import SpeechRequest
from gateway.fleet.lineup import Lineup
from gateway.fleet.stages import Stages


class Calls:
    """All live calls. Refuses what is too much and ends what is left at shutdown."""

    def __init__(
        self, stages: Stages, config: GatewayConfig, delivery: Mapping[str, Delivery]
    ) -> None:
        self._stages = stages
        self._config = config
        self._delivery = delivery
        self._live: set[Call] = set()
        self._admitted = 0
        self._closing = self._ended = False
        self._hurried = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Requests that are admitted and not over."""
        return self._admitted

    @property
    def closing(self) -> bool:
        """Whether the gateway was told to stop."""
        return self._closing

    def check_open(self) -> None:
        """Raise `Unavailable` when the gateway was told to stop."""
        if self._closing:
            raise _shutting_down()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request in for as long as the context lasts.

        Raises `ResourceExhausted` when there are too many, `Unavailable` at shutdown.
        """
        self.check_open()
        if self._admitted >= self._config.max_calls:
            raise ResourceExhausted(
                f"{self._admitted} requests are in flight, which is the most", retry_after_s=1.0
            )
        self._admitted += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._admitted -= 1
            if not self._admitted:
                self._idle.set()

    @asynccontextmanager
    async def run(self, request: SpeechRequest, lineup: Lineup) -> AsyncIterator[Call]:
        """A call that is live within the context. Raises `Unavailable` after the shutdown."""
        if self._ended:
            raise _shutting_down()
        call = Call(request, lineup, self._stages, self._config, self._delivery)
        del request  # The call has what it needs of it.
        self._live.add(call)
        try:
            async with call:
                yield call
        finally:
            self._live.discard(call)

    async def wait_idle(self) -> None:
        """Return when no request is in flight."""
        await self._idle.wait()

    def refuse(self) -> None:
        """Admit nothing more from now on."""
        self._closing = True

    def hurry(self) -> None:
        """End what runs now, without the rest of the time that it was given."""
        self._hurried.set()

    async def wait_hurried(self) -> None:
        """Return when someone is in a hurry."""
        await self._hurried.wait()

    async def close(self, drain_s: float) -> None:
        """Admit nothing more; after `drain_s`, or when hurried, end the rest with `Unavailable`."""
        self.refuse()
        await _wait_first((self._idle, self._hurried), drain_s)
        self._ended = True
        for call in self._live:
            call.end_with(_shutting_down())
        await _wait_first((self._idle,), CLOSE_WAIT_S)


def _shutting_down() -> Unavailable:
    return Unavailable("the gateway is shutting down", retry_after_s=1.0)


async def _wait_first(events: Iterable[asyncio.Event], timeout_s: float) -> None:
    """Return when one of the events is set, or the time is over."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
