"""All live calls: how many there may be, and their end at shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import ResourceExhausted, Unavailable
from antiphon.segment import Delivery
from gateway.call import CLOSE_WAIT_S, Call
from gateway.lineup import Lineup
from gateway.request import SpeechRequest
from gateway.stages import Stages


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
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Requests that are admitted and not over."""
        return self._admitted

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request in for as long as the context lasts.

        Raises `ResourceExhausted` when there are too many, `Unavailable` at shutdown.
        """
        if self._closing:
            raise Unavailable("the gateway is shutting down")
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
        """A call that is live within the context."""
        call = Call(request, lineup, self._stages, self._config, self._delivery)
        self._live.add(call)
        try:
            async with call:
                yield call
        finally:
            self._live.discard(call)

    async def wait_idle(self) -> None:
        """Return when no request is in flight."""
        await self._idle.wait()

    async def close(self, grace_s: float) -> None:
        """Admit nothing more; after `grace_s` end what is left with `Unavailable`."""
        self._closing = True
        if await self._idle_within(grace_s):
            return
        for call in self._live:
            call.end_with(Unavailable("the gateway is shutting down"))
        await self._idle_within(CLOSE_WAIT_S)

    async def _idle_within(self, wait_s: float) -> bool:
        """Whether the last request was over before the time was."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._idle.wait()
        except TimeoutError:
            return False
