"""From what a client asked for to the segment that answers it, the same for every door.

The only owner of all live sessions: how many there may be, and their end at shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from types import MappingProxyType

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, NotFound, ResourceExhausted, Unavailable
from antiphon.segment import Delivery
from gateway.calls.choices import Choices, order_of_choice
from gateway.calls.order import Order
from gateway.calls.segment import CallSegment
from gateway.calls.session import CLOSE_WAIT_S, Session
from gateway.fleet.stages import Stages
from gateway.media.attachments import name_field
from gateway.media.remote import UrlFetcher


class Calls:
    """All live sessions. Refuses what is too much and ends what is left at shutdown."""

    def __init__(
        self, stages: Stages, config: GatewayConfig, delivery: Mapping[str, Delivery]
    ) -> None:
        self.stages = stages
        self._config = config
        self._delivery = delivery
        self._fetcher = UrlFetcher(config)
        self._live: set[Session] = set()
        self._admitted = 0
        self._closing = False
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

    def check_model(self, name: str) -> None:
        """Raise `NotFound` unless the name is empty or the served model's."""
        served = self.stages.model_name()
        if name not in ("", served):
            raise NotFound(f"no model {name!r}; there is: {served}", field="model")

    @asynccontextmanager
    async def answer(self, order: Order) -> AsyncIterator[CallSegment]:
        """The segment that answers an order, the only one of its session.

        Raises what `admit`, `session` and `Session.ask` raise.
        """
        with self.admit():
            async with self.session(order.outputs, order.model, order.field_names) as session:
                asking = session.ask(order, last=True)
                # Attachments may be large, and the call may be long: the stages alone keep them.
                del order
                yield await asking

    @asynccontextmanager
    async def choices(self, order: Order) -> AsyncIterator[CallSegment | Choices]:
        """The segments that answer an order, each in a session of its own; of one the events are
        plain. Raises what `answer` raises."""
        if order.choices == 1:
            async with self.answer(order) as segment:
                del order
                yield segment
            return
        async with AsyncExitStack() as sessions:
            segments = [
                await sessions.enter_async_context(self.answer(order_of_choice(order, choice)))
                for choice in range(order.choices)
            ]
            del order
            yield await sessions.enter_async_context(Choices(segments))

    @asynccontextmanager
    async def session(
        self,
        outputs: frozenset[str],
        model: str = "",
        field_names: Mapping[str, str] = MappingProxyType({}),
    ) -> AsyncIterator[Session]:
        """A session on the stages that make the outputs (all, if empty), open within the context.

        It is no request yet: see `admit`. Raises `NotFound` for another model, `Unavailable` at
        shutdown and when a stage is down, `NotImplementedYet` for an output that the model does
        not make, by its name among the client's.
        """
        self.check_open()
        self.check_model(model)
        try:
            lineup = self.stages.line_up(outputs)
        except AntiphonError as error:
            name_field(error, field_names)
            raise
        session = Session(lineup, self.stages, self._config, self._delivery, self._fetcher)
        self._live.add(session)
        try:
            async with session:
                yield session
        finally:
            self._live.discard(session)

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
        for session in self._live:
            session.end_with(_shutting_down())
        await _wait_first((self._idle,), CLOSE_WAIT_S)
        self._fetcher.close()


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
